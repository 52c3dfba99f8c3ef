//! What each producer has delivered, so that nothing is stored twice.
//!
//! What is known of a producer outlives its connections: a client that comes back learns where to continue. All
//! connections of a producer are served by one event loop, whose table this is, so the answer is never
//! out of date.
//!
//! It ends with the listener. What inserts into tables came to is known to the tables as well, which outlive it.

use std::collections::HashMap;

use crate::wire::handshake::ProducerId;

/// How many producers are remembered. Past that, the one that has been away for longest is forgotten.
const MAX_PRODUCERS: usize = 1 << 16;

#[derive(Debug)]
struct Delivered {
    epoch: u64,
    next: u64,
    /// The connection that serves it.
    connection: Option<u64>,
    /// When it was last opened or closed, in a count of such events.
    touched: u64,
}

/// A table of producers.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    table: HashMap<ProducerId, Delivered>,
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

impl Producers {
    /// Begins or goes on with a producer; `None` when a later epoch was here.
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
        if before.is_some_and(|delivered| delivered.epoch > epoch) {
            return None;
        }
        let replaced = before.and_then(|delivered| delivered.connection);
        let again = before.is_some_and(|delivered| delivered.epoch == epoch);
        let next = match before {
            // A client forgets only what was acknowledged to it.
            Some(delivered) if again => delivered.next.max(first),
            _ => first,
        };
        let delivered = Delivered { epoch, next, connection: Some(connection), touched };
        self.table.insert(producer, delivered);
        self.forget_some();
        Some(Resumed { next, replaced, again })
    }

    /// Notes that all samples before `next` are stored.
    pub(crate) fn advance(&mut self, producer: &ProducerId, connection: u64, next: u64) {
        if let Some(delivered) = self.of(producer, connection) {
            delivered.next = next;
        }
    }

    /// Notes that a connection is gone. Also after a goodbye the producer is remembered: if the last
    /// acknowledgement was lost, the client comes back and asks.
    pub(crate) fn leave(&mut self, producer: &ProducerId, connection: u64) {
        self.events += 1;
        let touched = self.events;
        let Some(delivered) = self.of(producer, connection) else { return };
        delivered.connection = None;
        delivered.touched = touched;
    }

    fn of(&mut self, producer: &ProducerId, connection: u64) -> Option<&mut Delivered> {
        self.table.get_mut(producer).filter(|delivered| delivered.connection == Some(connection))
    }

    fn forget_some(&mut self) {
        if self.table.len() <= MAX_PRODUCERS {
            return;
        }
        let away = self.table.iter().filter(|(_, delivered)| delivered.connection.is_none());
        let mut away: Vec<_> = away.map(|(id, delivered)| (delivered.touched, *id)).collect();
        // Many at once, so that the next newcomers need not search again.
        away.sort_unstable();
        for (_, id) in away.iter().take(MAX_PRODUCERS / 16) {
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
        let mut producers = Producers::default();
        let new = Resumed { next: 5, replaced: None, again: false };
        assert_eq!(producers.open(A, 7, 5, 1), Some(new));
        producers.advance(&A, 1, 9);
        // The old connection looks open still: it is replaced, and can't write any more.
        let resumed = Resumed { next: 9, replaced: Some(1), again: true };
        assert_eq!(producers.open(A, 7, 5, 2), Some(resumed));
        producers.advance(&A, 1, 100);
        producers.leave(&A, 1);
        let resumed = Resumed { next: 9, replaced: Some(2), again: true };
        assert_eq!(producers.open(A, 7, 5, 3), Some(resumed));
    }

    #[test]
    fn epochs_only_grow() {
        let mut producers = Producers::default();
        assert!(producers.open(A, 7, 0, 1).is_some());
        assert_eq!(producers.open(A, 6, 0, 2), None);
        producers.advance(&A, 1, 50);
        let later = producers.open(A, 8, 0, 3).unwrap();
        assert_eq!((later.next, later.again), (0, false));
    }

    #[test]
    fn the_longest_away_are_forgotten_first() {
        let mut producers = Producers::default();
        for number in 0..=MAX_PRODUCERS as u64 {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            assert!(producers.open(id, 1, 0, number + 1).is_some());
            if number > 0 {
                producers.leave(&id, number + 1);
            }
        }
        assert!(producers.open([0xff; 16], 1, 0, u64::MAX).is_some());
        assert!(producers.table.len() <= MAX_PRODUCERS);
        assert!(producers.table.contains_key(&[0; 16]), "a connected one is never forgotten");
    }
}
