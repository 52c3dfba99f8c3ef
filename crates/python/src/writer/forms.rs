//! The forms of steps and of items that a writer knows.

use std::sync::Arc;

use smallvec::SmallVec;

/// How many forms of a kind a writer knows at a time.
const MAX_FORMS: usize = 32;

/// RecentForms of a kind; the one used last comes first.
pub struct RecentForms<F>(Vec<Arc<F>>);

impl<F> Default for RecentForms<F> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<F> RecentForms<F> {
    /// The one used last.
    pub fn first(&self) -> Option<Arc<F>> {
        self.0.first().cloned()
    }

    /// All of them, to look at without the writer's lock.
    pub fn all(&self) -> SmallVec<[Arc<F>; 4]> {
        self.0.iter().cloned().collect()
    }

    /// Puts a form before the others. The one for which there is no room any more is to be dropped without the writer's
    /// lock: its end may run Python code.
    #[must_use]
    pub fn add(&mut self, form: &Arc<F>) -> Option<Arc<F>> {
        let dropped = if self.0.len() == MAX_FORMS { self.0.pop() } else { None };
        self.0.insert(0, Arc::clone(form));
        dropped
    }

    /// Puts a form that is known before the others.
    pub fn touch(&mut self, form: &Arc<F>) {
        if let Some(at) = self.0.iter().position(|other| Arc::ptr_eq(other, form)) {
            self.0[..=at].rotate_right(1);
        }
    }
}
