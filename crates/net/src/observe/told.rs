//! Numbers that a server's own program tells, such as those of a training run.
//!
//! They are shown wherever the server's are, in one family, by name.
//!
//! # Invariants
//!
//! 1. There are at most [`MAX_TOLD`], and no name is empty or longer than [`MAX_TOLD_NAME`].
//! 2. What is told at once is seen at once, or not at all.

use std::collections::BTreeMap;

use echoic_memory::sync::Mutex;

/// How many numbers there may be.
pub const MAX_TOLD: usize = 256;
/// Bytes of the longest name.
pub const MAX_TOLD_NAME: usize = 128;

/// Why numbers are not taken. Nothing is changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GaugeError {
    /// Choose another name.
    #[error("the name of a number has 1 to {MAX_TOLD_NAME} bytes; {0:?} has {len}", len = .0.len())]
    Name(String),
    /// Forget some.
    #[error("a server shows at most {MAX_TOLD} numbers that it is told; these would make {0}")]
    Many(usize),
}

/// The numbers that were told last.
#[derive(Debug, Default)]
pub struct Told(Mutex<BTreeMap<String, f64>>);

impl Told {
    /// Replaces numbers by name; those without a value are forgotten.
    pub fn tell(&self, numbers: Vec<(String, Option<f64>)>) -> Result<(), GaugeError> {
        for (name, _) in &numbers {
            if name.is_empty() || name.len() > MAX_TOLD_NAME {
                return Err(GaugeError::Name(name.clone()));
            }
        }
        let mut known = self.0.lock();
        let mut changed = known.clone();
        for (name, value) in numbers {
            match value {
                Some(value) => changed.insert(name, value),
                None => changed.remove(&name),
            };
        }
        if changed.len() > MAX_TOLD {
            return Err(GaugeError::Many(changed.len()));
        }
        *known = changed;
        Ok(())
    }

    /// All of them, by name.
    pub fn all(&self) -> BTreeMap<String, f64> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_taken_changes_nothing() {
        let told = Told::default();
        told.tell(vec![("loss".into(), Some(1.0)), ("gone".into(), Some(2.0))]).expect("they fit");
        told.tell(vec![("gone".into(), None)]).expect("fewer fit too");
        let many = (0..=MAX_TOLD).map(|i| (i.to_string(), Some(0.0))).collect();
        assert_eq!(told.tell(many), Err(GaugeError::Many(MAX_TOLD + 2)));
        let bad = vec![("loss".into(), Some(3.0)), (String::new(), Some(0.0))];
        assert_eq!(told.tell(bad), Err(GaugeError::Name(String::new())));
        assert_eq!(told.all().into_iter().collect::<Vec<_>>(), [("loss".to_owned(), 1.0)]);
    }
}
