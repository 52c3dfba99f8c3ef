//! What a ledger counts.

use std::collections::HashMap;

use crate::fields;

/// Each count is named here and nowhere else: so all of them are kept, sent and shown.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Groups and tokens, since the table was new.
        ///
        /// Always, `submitted = running + accepted + rejected + filtered`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            /// What they are called, in their order.
            pub const NAMES: [&'static str; Self::LEN] = [$(stringify!($name)),*];
            /// How many there are.
            pub const LEN: usize = [$(stringify!($name)),*].len();

            /// All of them, in their order.
            pub fn words(&self) -> [u64; Self::LEN] {
                [$(self.$name),*]
            }
        }

        $crate::fields! { Counts { $($name: u64,)* } }
    };
}

counts! {
    /// Groups that were reserved.
    submitted,
    /// Of these, those that are made now, or were left and wait for a producer.
    running,
    /// Those that were complete and wanted, delivered or not.
    accepted,
    /// Those that never were complete: given up, expired, late, or too old before.
    rejected,
    /// Those that were complete and not wanted.
    filtered,
    /// Of those rejected: nothing was heard of the producer.
    expired,
    /// Of those rejected: too little was there at the deadline.
    late,
    /// Of those rejected and those filtered: they were too old.
    stale,
    /// Of those filtered: removed by a call.
    removed,
    /// Groups that were complete at their deadline with fewer items than wanted.
    short,
    /// Items that were started, and not needed for their group.
    surplus,
    /// Batches.
    batches,
    /// Groups in them.
    delivered,
    /// Tokens in them.
    delivered_tokens,
    /// Of the groups delivered: older than they should be.
    overdue,
    /// Of the tokens delivered: masked, because they were too old.
    masked_tokens,
    /// Shares that were delivered once more.
    redelivered,
    /// Of the groups delivered: queued again, as they were not acknowledged.
    returned,
    /// Groups that consumers said they are done with.
    acked,
    /// Groups that were of use, and went because they were too old or others came.
    retired,
    /// Groups that consumers were given, and never said so, where nothing is delivered twice.
    lost,
    /// Leases that were over before their consumer said so.
    expired_leases,
    /// What came from producers whose reservation was another one's by then, and from consumers whose lease was over.
    fenced,
    /// Tokens that came.
    tokens,
    /// Segments that came twice.
    duplicates,
    /// Groups that another producer went on with.
    resumed,
}

impl Counts {
    /// All of them by name.
    pub fn named(&self) -> [(&'static str, u64); Self::LEN] {
        let words = self.words();
        std::array::from_fn(|at| (Self::NAMES[at], words[at]))
    }
}

/// What is counted for each producer by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// What it calls itself.
    pub name: String,
    /// Groups that it reserved.
    pub submitted: u64,
    /// See [`Counts`].
    pub accepted: u64,
    /// See [`Counts`].
    pub rejected: u64,
    /// See [`Counts`].
    pub filtered: u64,
    /// Groups that it makes now.
    pub running: u64,
    /// Tokens of its groups that were accepted.
    pub tokens: u64,
    /// Its groups in batches; one that was queued again and delivered once more counts twice.
    pub delivered: u64,
    /// When it last reserved a group or went on with one, by the table's time in milliseconds.
    pub last_reserved: Option<u64>,
}

/// The most producers that are distinguished; all others are one.
pub const MAX_SOURCES: usize = 1 << 10;
/// What all others are called.
pub const OTHERS: &str = "(others)";

/// Producers by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Sources {
    all: Vec<Source>,
    places: HashMap<String, usize>,
}

fields! { Sources { all: Vec<Source>; places: HashMap::new() } }

impl Sources {
    /// The place of a producer.
    pub(super) fn place(&mut self, name: &str) -> usize {
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        if self.all.len() >= MAX_SOURCES && name != OTHERS {
            return self.place(OTHERS);
        }
        let place = self.all.len();
        self.all.push(Source { name: name.into(), ..Source::default() });
        self.places.insert(name.into(), place);
        place
    }

    /// Counts something for a producer.
    pub(super) fn count(&mut self, name: &str, change: impl FnOnce(&mut Source)) {
        let place = self.place(name);
        if let Some(source) = self.all.get_mut(place) {
            change(source);
        }
    }

    /// What is counted for a producer, or for all others if it is one of those.
    pub(super) fn get(&self, name: &str) -> Option<&Source> {
        let place = self.places.get(name).or_else(|| self.places.get(OTHERS))?;
        self.all.get(*place)
    }

    pub(super) fn all_mut(&mut self) -> &mut [Source] {
        &mut self.all
    }

    pub(super) fn all(&self) -> &[Source] {
        &self.all
    }

    /// Finds the places of what was read; whether each name is there once.
    pub(super) fn index(&mut self) -> bool {
        let names = self.all.iter().enumerate();
        self.places = names.map(|(at, one)| (one.name.clone(), at)).collect();
        self.places.len() == self.all.len()
    }
}
