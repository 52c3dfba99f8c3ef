//! What a ledger counts.

/// Groups and tokens, since the table was new.
///
/// Always, `submitted = running + accepted + rejected + filtered`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Groups that were admitted.
    pub submitted: u64,
    /// Of these, those that are made now, or were left and wait for a producer.
    pub running: u64,
    /// Those that were complete and wanted, delivered or not.
    pub accepted: u64,
    /// Those that never were complete: given up, expired, late, or too old before.
    pub rejected: u64,
    /// Those that were complete and not wanted.
    pub filtered: u64,
    /// Of those rejected: nothing was heard of the producer.
    pub expired: u64,
    /// Of those rejected: too little was there at the deadline.
    pub late: u64,
    /// Of those rejected and those filtered: they were too old.
    pub stale: u64,
    /// Of those filtered: somebody said that they are not wanted.
    pub discarded: u64,
    /// Groups that were complete at their deadline with fewer items than wanted.
    pub short: u64,
    /// Items that were begun, and not needed for their group.
    pub surplus: u64,
    /// Batches.
    pub batches: u64,
    /// Groups in them.
    pub delivered: u64,
    /// Tokens in them.
    pub delivered_tokens: u64,
    /// Of the groups delivered: older than they should be.
    pub overdue: u64,
    /// Of the tokens delivered: masked, because they were too old.
    pub masked_tokens: u64,
    /// Shares that were delivered once more.
    pub redelivered: u64,
    /// Of the groups delivered: queued again, as nobody was done with them.
    pub returned: u64,
    /// Groups that consumers said they are done with.
    pub acked: u64,
    /// Groups that were of use, and went because they were too old or others came.
    pub retired: u64,
    /// Groups that consumers were given, and never said so, where nothing is delivered twice.
    pub lost: u64,
    /// Leases that were over before their consumer said so.
    pub expired_leases: u64,
    /// What came from producers whose permit was another one's by then; a table counts here what came from
    /// consumers whose lease was over.
    pub fenced: u64,
    /// Tokens that came.
    pub tokens: u64,
    /// Segments that came twice.
    pub duplicates: u64,
    /// Groups that another producer went on with.
    pub resumed: u64,
}

impl Counts {
    /// All of them by name.
    pub fn named(&self) -> [(&'static str, u64); 26] {
        [
            ("submitted", self.submitted),
            ("running", self.running),
            ("accepted", self.accepted),
            ("rejected", self.rejected),
            ("filtered", self.filtered),
            ("expired", self.expired),
            ("late", self.late),
            ("stale", self.stale),
            ("discarded", self.discarded),
            ("short", self.short),
            ("surplus", self.surplus),
            ("batches", self.batches),
            ("delivered", self.delivered),
            ("delivered_tokens", self.delivered_tokens),
            ("overdue", self.overdue),
            ("masked_tokens", self.masked_tokens),
            ("redelivered", self.redelivered),
            ("returned", self.returned),
            ("acked", self.acked),
            ("retired", self.retired),
            ("lost", self.lost),
            ("expired_leases", self.expired_leases),
            ("fenced", self.fenced),
            ("tokens", self.tokens),
            ("duplicates", self.duplicates),
            ("resumed", self.resumed),
        ]
    }
}

/// What is counted for each producer by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// What it calls itself.
    pub name: String,
    /// Groups that it was admitted for.
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
}

/// The most producers that are told apart; all others are one.
pub const MAX_SOURCES: usize = 1 << 10;
/// What all others are called.
pub const OTHERS: &str = "(others)";

/// Producers by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Sources {
    all: Vec<Source>,
    places: std::collections::HashMap<String, usize>,
}

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

    pub(super) fn all(&self) -> &[Source] {
        &self.all
    }

    pub(super) fn restore(&mut self, sources: Vec<Source>) {
        self.places = sources.iter().enumerate().map(|(at, one)| (one.name.clone(), at)).collect();
        self.all = sources;
    }
}
