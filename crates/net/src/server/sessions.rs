//! What each producer has delivered, so that nothing is stored twice.
//!
//! A session outlives its connections: a client that comes back is told where to go on. All
//! connections of a producer are served by one event loop, whose table this is, so the answer is never
//! out of date.
//!
//! It ends with the listener. What inserts into tables came to is known to the tables as well, which outlive it.

use std::collections::HashMap;

use crate::wire::handshake::ProducerId;

/// How many producers are remembered. Past that, the one that has been away for longest is forgotten.
const MAX_SESSIONS: usize = 1 << 16;

#[derive(Debug)]
struct Session {
    epoch: u64,
    next: u64,
    /// The connection that serves it.
    connection: Option<u64>,
    /// When it was last opened or closed, in a count of such events.
    touched: u64,
}

/// A table of sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    table: HashMap<ProducerId, Session>,
    events: u64,
}

/// How a client may go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resumed {
    /// The first sample that is not stored.
    pub(crate) next: u64,
    /// The connection that it leaves behind, to be closed.
    pub(crate) replaced: Option<u64>,
    /// Whether it was here before.
    pub(crate) again: bool,
}

impl Sessions {
    /// Begins or goes on with a session; `None` when a later epoch was here.
    pub(crate) fn open(
        &mut self,
        producer: ProducerId,
        epoch: u64,
        first: u64,
        connection: u64,
    ) -> Option<Resumed> {
        self.events += 1;
        let touched = self.events;
        let before = self.table.get(&producer);
        if before.is_some_and(|session| session.epoch > epoch) {
            return None;
        }
        let replaced = before.and_then(|session| session.connection);
        let again = before.is_some_and(|session| session.epoch == epoch);
        let next = match before {
            // A client forgets only what was acknowledged to it.
            Some(session) if again => session.next.max(first),
            _ => first,
        };
        let session = Session { epoch, next, connection: Some(connection), touched };
        self.table.insert(producer, session);
        self.forget_some();
        Some(Resumed { next, replaced, again })
    }

    /// Notes that all samples before `next` are stored.
    pub(crate) fn advance(&mut self, producer: &ProducerId, connection: u64, next: u64) {
        if let Some(session) = self.of(producer, connection) {
            session.next = next;
        }
    }

    /// Notes that a connection is gone. Also after a goodbye the session stays: if the last
    /// acknowledgement was lost, the client comes back and asks.
    pub(crate) fn leave(&mut self, producer: &ProducerId, connection: u64) {
        self.events += 1;
        let touched = self.events;
        let Some(session) = self.of(producer, connection) else { return };
        session.connection = None;
        session.touched = touched;
    }

    fn of(&mut self, producer: &ProducerId, connection: u64) -> Option<&mut Session> {
        self.table.get_mut(producer).filter(|session| session.connection == Some(connection))
    }

    fn forget_some(&mut self) {
        if self.table.len() <= MAX_SESSIONS {
            return;
        }
        let away = self.table.iter().filter(|(_, session)| session.connection.is_none());
        let mut away: Vec<_> = away.map(|(id, session)| (session.touched, *id)).collect();
        // Many at once, so that the next newcomers need not search again.
        away.sort_unstable();
        for (_, id) in away.iter().take(MAX_SESSIONS / 16) {
            self.table.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ProducerId = [1; 16];

    #[test]
    fn a_client_goes_on_where_it_was() {
        let mut sessions = Sessions::default();
        let new = Resumed { next: 5, replaced: None, again: false };
        assert_eq!(sessions.open(A, 7, 5, 1), Some(new));
        sessions.advance(&A, 1, 9);
        // The old connection looks open still: it is replaced, and can't write any more.
        let resumed = Resumed { next: 9, replaced: Some(1), again: true };
        assert_eq!(sessions.open(A, 7, 5, 2), Some(resumed));
        sessions.advance(&A, 1, 100);
        sessions.leave(&A, 1);
        let resumed = Resumed { next: 9, replaced: Some(2), again: true };
        assert_eq!(sessions.open(A, 7, 5, 3), Some(resumed));
    }

    #[test]
    fn epochs_only_grow() {
        let mut sessions = Sessions::default();
        assert!(sessions.open(A, 7, 0, 1).is_some());
        assert_eq!(sessions.open(A, 6, 0, 2), None);
        sessions.advance(&A, 1, 50);
        let later = sessions.open(A, 8, 0, 3).unwrap();
        assert_eq!((later.next, later.again), (0, false));
    }

    #[test]
    fn the_longest_away_are_forgotten_first() {
        let mut sessions = Sessions::default();
        for number in 0..=MAX_SESSIONS as u64 {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            assert!(sessions.open(id, 1, 0, number + 1).is_some());
            if number > 0 {
                sessions.leave(&id, number + 1);
            }
        }
        assert!(sessions.open([0xff; 16], 1, 0, u64::MAX).is_some());
        assert!(sessions.table.len() <= MAX_SESSIONS);
        assert!(sessions.table.contains_key(&[0; 16]), "a connected one is never forgotten");
    }
}
