//! Kinds of columns, each once, so that chunks share them.

use std::collections::HashSet;
use std::sync::Arc;

use crate::chunk::ColumnKind;

/// More than the chunks of any table of ours have; those that come when there are this many are not shared.
const MOST: usize = 1 << 12;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    /// Many chunks in a row are often of one kind.
    last: Option<Arc<ColumnKind>>,
    all: HashSet<Arc<ColumnKind>>,
}

impl Kinds {
    /// The one of these that was there before, or this.
    pub(crate) fn share(&mut self, kind: ColumnKind) -> Arc<ColumnKind> {
        if let Some(last) = self.last.as_ref().filter(|last| ***last == kind) {
            return Arc::clone(last);
        }
        let known = self.all.get(&kind).map(Arc::clone);
        let kind = known.unwrap_or_else(|| Arc::new(kind));
        if self.all.len() < MOST {
            self.all.insert(Arc::clone(&kind));
        }
        self.last = Some(Arc::clone(&kind));
        kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Dtype;

    #[test]
    fn one_kind_is_there_once_whatever_came_between() {
        let kind = |axis| ColumnKind { dtype: Dtype::Bool, shape: vec![axis] };
        let mut kinds = Kinds::default();
        let (one, two) = (kinds.share(kind(1)), kinds.share(kind(2)));
        assert!(
            Arc::ptr_eq(&one, &kinds.share(kind(1))) && Arc::ptr_eq(&two, &kinds.share(kind(2)))
        );
        let last = MOST + 5;
        (3..last).for_each(|axis| drop(kinds.share(kind(axis))));
        assert!(kinds.all.len() <= MOST && Arc::ptr_eq(&one, &kinds.share(kind(1))));
    }
}
