//! How far the inserts of each producer into a table have come, so that none goes in twice.
//!
//! A producer elsewhere numbers its operations, and keeps each until it is acknowledged. When a connection, a
//! listener or the whole server is lost, it sends again from some number on. A table therefore knows of every
//! producer the first number that is not in it. That changes in the moment of the insert, and goes where the
//! items go: into checkpoints and journals.
//!
//! # Invariants
//!
//! 1. Of the operations of a session that are for this table, those below its `next` are in, and no others:
//!    each table gets them in the order of their numbers, whichever table gets those in between.
//! 2. There are at most [`MAX_SESSIONS`].
//!
//! # Limitations
//!
//! When there are too many, those whose last insert is longest ago are forgotten. What one of them sends
//! again then is taken as new.

use std::collections::HashMap;

use super::error::TableError;

/// How many producers are remembered.
pub(super) const MAX_SESSIONS: usize = 1 << 16;
/// How many are forgotten at once, so that the next newcomers need not search again.
const FORGOTTEN: usize = MAX_SESSIONS / 16;
/// Bytes of a session in a checkpoint: producer, epoch, next.
pub(super) const SESSION_BYTES: usize = 32;

/// The producer: 16 bytes of its own choice.
pub type Producer = [u8; 16];

/// Which operation of whom an insert is; of several rows, the first is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The producer that sent it.
    pub producer: Producer,
    /// Which life of the producer: later ones have larger numbers.
    pub epoch: u64,
    /// Which of its operations.
    pub number: u64,
}

/// One producer's inserts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) producer: Producer,
    pub(super) epoch: u64,
    /// The first operation that is not in the table.
    pub(super) next: u64,
    /// When it last grew, in a count of such events.
    touched: u64,
    /// In which generation the journal recorded it.
    told: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Sessions {
    places: Vec<Session>,
    by_producer: HashMap<Producer, u32>,
    /// Places of those that were forgotten.
    free: Vec<u32>,
    touches: u64,
    /// How often all were to be recorded again.
    generation: u64,
}

/// How a journal calls a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Called {
    pub(super) number: u32,
    /// The journal has not heard of it.
    pub(super) is_new: bool,
}

impl Sessions {
    fn find(&self, producer: &Producer) -> Option<(u32, &Session)> {
        let number = *self.by_producer.get(producer)?;
        Some((number, self.places.get(number as usize)?))
    }

    /// The first operation of a session that is not in the table.
    pub(super) fn next(&self, producer: &Producer, epoch: u64) -> Result<u64, TableError> {
        match self.find(producer) {
            Some((_, session)) if session.epoch > epoch => Err(TableError::Stale),
            Some((_, session)) if session.epoch == epoch => Ok(session.next),
            _ => Ok(0),
        }
    }

    /// Whether this operation is in the table.
    pub(super) fn has(&self, origin: &Origin) -> Result<bool, TableError> {
        Ok(self.next(&origin.producer, origin.epoch)? > origin.number)
    }

    /// Takes note of this many operations that went in, and of the recording, which the caller does.
    pub(super) fn advance(&mut self, origin: &Origin, count: u64) -> Called {
        let Origin { producer, epoch, number } = *origin;
        self.touches += 1;
        let (touched, end) = (self.touches, number.saturating_add(count));
        let fresh = Session { producer, epoch, next: end, touched, told: self.generation + 1 };
        let place = match self.by_producer.get(&producer) {
            Some(place) => *place,
            None => {
                if self.by_producer.len() >= MAX_SESSIONS {
                    self.forget_some();
                }
                let place = self.free.pop().unwrap_or(self.places.len() as u32);
                if place as usize == self.places.len() {
                    self.places.push(fresh);
                } else {
                    self.places[place as usize] = fresh;
                }
                self.by_producer.insert(producer, place);
                return Called { number: place, is_new: true };
            }
        };
        let session = &mut self.places[place as usize];
        let is_new = session.told != fresh.told || session.epoch != epoch;
        let next = if session.epoch == epoch { session.next.max(end) } else { end };
        *session = Session { next, ..fresh };
        Called { number: place, is_new }
    }

    fn forget_some(&mut self) {
        let mut ages: Vec<(u64, u32)> = self
            .by_producer
            .values()
            .map(|place| (self.places[*place as usize].touched, *place))
            .collect();
        if ages.len() > FORGOTTEN {
            ages.select_nth_unstable(FORGOTTEN);
            ages.truncate(FORGOTTEN);
        }
        for (_, place) in ages {
            self.by_producer.remove(&self.places[place as usize].producer);
            self.free.push(place);
        }
    }

    /// Has the journal record each again before it is named again: it is another one, or the part that
    /// told is no longer needed.
    pub(super) fn report_anew(&mut self) {
        self.generation += 1;
    }

    /// All of them, in no order.
    pub(super) fn all(&self) -> Vec<Session> {
        self.by_producer.values().map(|place| self.places[*place as usize]).collect()
    }

    /// Sessions as bytes, those that were forgotten next first.
    pub(super) fn write(mut sessions: Vec<Session>) -> Vec<u8> {
        sessions.sort_unstable_by_key(|session| session.touched);
        let mut bytes = Vec::with_capacity(sessions.len() * SESSION_BYTES);
        for session in sessions {
            bytes.extend_from_slice(&session.producer);
            bytes.extend_from_slice(&session.epoch.to_le_bytes());
            bytes.extend_from_slice(&session.next.to_le_bytes());
        }
        bytes
    }

    /// Reads what [`Sessions::write`] wrote.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let (sessions, rest) = bytes.as_chunks::<SESSION_BYTES>();
        if !rest.is_empty() {
            return Err(format!("{} bytes are behind its sessions", rest.len()));
        }
        if sessions.len() > MAX_SESSIONS {
            let got = sessions.len();
            return Err(format!("it has {got} sessions, there are at most {MAX_SESSIONS}"));
        }
        let mut all = Self::default();
        for session in sessions {
            let (producer, [epoch, next]) = split(session);
            if all.by_producer.contains_key(&producer) {
                return Err(format!("producer {producer:02x?} has two sessions"));
            }
            all.advance(&Origin { producer, epoch, number: next }, 0);
        }
        all.report_anew();
        Ok(all)
    }
}

/// A producer, and the two numbers behind it.
fn split(bytes: &[u8; SESSION_BYTES]) -> (Producer, [u64; 2]) {
    let words: [[u8; 8]; 4] =
        std::array::from_fn(|word| std::array::from_fn(|byte| bytes[8 * word + byte]));
    let [first, second, epoch, next] = words;
    let mut producer = [0; 16];
    producer[..8].copy_from_slice(&first);
    producer[8..].copy_from_slice(&second);
    (producer, [epoch, next].map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Producer = [1; 16];

    fn origin(producer: Producer, epoch: u64, number: u64) -> Origin {
        Origin { producer, epoch, number }
    }

    fn named(number: u64) -> Producer {
        let mut producer = [0; 16];
        producer[..8].copy_from_slice(&number.to_le_bytes());
        producer
    }

    #[test]
    fn what_is_in_is_known_whatever_went_elsewhere_in_between() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.has(&origin(A, 7, 0)), Ok(false));
        sessions.advance(&origin(A, 7, 3), 2);
        assert_eq!(sessions.has(&origin(A, 7, 4)), Ok(true));
        assert_eq!(sessions.has(&origin(A, 7, 5)), Ok(false));
        sessions.advance(&origin(A, 7, 9), 1);
        assert_eq!(sessions.next(&A, 7), Ok(10));
        assert_eq!(sessions.next(&[2; 16], 7), Ok(0));
    }

    #[test]
    fn a_later_life_of_a_producer_begins_anew_and_ends_the_one_before() {
        let mut sessions = Sessions::default();
        sessions.advance(&origin(A, 7, 0), 5);
        assert_eq!(sessions.next(&A, 8), Ok(0));
        sessions.advance(&origin(A, 8, 0), 1);
        assert_eq!((sessions.next(&A, 8), sessions.next(&A, 7)), (Ok(1), Err(TableError::Stale)));
    }

    #[test]
    fn a_journal_is_told_of_a_session_once_in_each_generation_and_of_each_life() {
        let mut sessions = Sessions::default();
        let tell = |sessions: &mut Sessions, epoch, number| {
            sessions.advance(&origin(A, epoch, number), 1).is_new
        };
        assert!(tell(&mut sessions, 7, 0));
        assert!(!tell(&mut sessions, 7, 1));
        sessions.report_anew();
        assert!(tell(&mut sessions, 7, 2));
        assert!(!tell(&mut sessions, 7, 3));
        assert!(tell(&mut sessions, 8, 0));
        let mut again = Sessions::read(&Sessions::write(sessions.all())).unwrap();
        assert!(tell(&mut again, 8, 1));
    }

    #[test]
    fn what_was_written_is_read_and_what_is_damaged_is_refused() {
        let mut sessions = Sessions::default();
        for number in 0..100 {
            sessions.advance(&origin(named(number), number, 2 * number), 3);
        }
        let bytes = Sessions::write(sessions.all());
        let again = Sessions::read(&bytes).unwrap();
        for number in 0..100 {
            assert_eq!(again.next(&named(number), number), Ok(2 * number + 3));
        }
        assert_eq!(Sessions::write(again.all()), bytes);
        let wrong = Sessions::read(&bytes[..bytes.len() - 1]).unwrap_err();
        assert!(wrong.contains("31 bytes"), "{wrong}");
        let twice = [&bytes[..SESSION_BYTES], &bytes[..SESSION_BYTES]].concat();
        let wrong = Sessions::read(&twice).unwrap_err();
        assert!(wrong.contains("two sessions"), "{wrong}");
        let many = vec![0; (MAX_SESSIONS + 1) * SESSION_BYTES];
        assert!(Sessions::read(&many).unwrap_err().contains("at most"));
    }

    #[test]
    fn those_who_were_quiet_for_longest_are_forgotten_when_there_are_too_many() {
        let mut sessions = Sessions::default();
        for number in 0..MAX_SESSIONS as u64 {
            sessions.advance(&origin(named(number), 1, 0), 1);
        }
        sessions.advance(&origin(named(0), 1, 1), 1);
        let most = sessions.places.len();
        for number in 0..10 {
            let called = sessions.advance(&origin(named(1 << 40 | number), 1, 0), 1);
            assert!(called.is_new && (called.number as usize) < most);
        }
        assert!(sessions.by_producer.len() <= MAX_SESSIONS);
        assert_eq!(sessions.next(&named(0), 1), Ok(2), "one that was heard of is not forgotten");
        assert_eq!(sessions.next(&named(1), 1), Ok(0));
        assert_eq!(sessions.next(&named(FORGOTTEN as u64 + 1), 1), Ok(1));
        assert_eq!(sessions.places.len(), most, "places are used again");
    }
}
