//! Numbers that a server's own program sets, such as those of a training run.
//!
//! They are shown wherever the server's are, in one family, by name.
//!
//! # Invariants
//!
//! 1. There are at most [`MAX_GAUGES`], and no name is empty or longer than [`MAX_GAUGE_NAME`].
//! 2. What is set at once is seen at once, or not at all.

use std::collections::BTreeMap;

use echoic_memory::sync::Mutex;

/// How many numbers there may be.
pub const MAX_GAUGES: usize = 256;
/// Bytes of the longest name.
pub const MAX_GAUGE_NAME: usize = 128;

/// Why numbers are not taken. Nothing is changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GaugeError {
    /// Choose another name.
    #[error("the name of a number has 1 to {MAX_GAUGE_NAME} bytes; {0:?} has {len}", len = .0.len())]
    Name(String),
    /// Forget some.
    #[error("a server shows at most {MAX_GAUGES} numbers of a program; these would make {0}")]
    Many(usize),
}

/// The numbers that were set last.
#[derive(Debug, Default)]
pub struct ProgramGauges(Mutex<BTreeMap<String, f64>>);

impl ProgramGauges {
    /// Replaces numbers by name; those without a value are forgotten.
    pub fn set(&self, numbers: Vec<(String, Option<f64>)>) -> Result<(), GaugeError> {
        for (name, _) in &numbers {
            if name.is_empty() || name.len() > MAX_GAUGE_NAME {
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
        if changed.len() > MAX_GAUGES {
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
        let gauges = ProgramGauges::default();
        gauges.set(vec![("loss".into(), Some(1.0)), ("gone".into(), Some(2.0))]).expect("they fit");
        gauges.set(vec![("gone".into(), None)]).expect("fewer fit too");
        let many = (0..=MAX_GAUGES).map(|i| (i.to_string(), Some(0.0))).collect();
        assert_eq!(gauges.set(many), Err(GaugeError::Many(MAX_GAUGES + 2)));
        let bad = vec![("loss".into(), Some(3.0)), (String::new(), Some(0.0))];
        assert_eq!(gauges.set(bad), Err(GaugeError::Name(String::new())));
        assert_eq!(gauges.all().into_iter().collect::<Vec<_>>(), [("loss".to_owned(), 1.0)]);
    }
}
