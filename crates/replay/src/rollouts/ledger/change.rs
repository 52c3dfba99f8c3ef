//! What may happen to a ledger, what comes of it, and why not.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::super::item::{Finish, Group, Item, Segment, Updates};
use crate::WaitReason;

/// The most groups that one call reserves.
pub const MAX_RESERVED: u32 = 1 << 12;
/// The most groups that a change names.
pub const MAX_NAMED: u32 = 1 << 16;
/// The most ranks that share a batch.
pub const MAX_RANKS: u32 = 1 << 10;
/// The highest version: with it, the groups that are made up to it can be counted.
pub const MAX_VERSION: i64 = 1 << 38;
/// The longest key of a group, and name of a source.
pub const MAX_KEY: usize = 255;
/// The most bytes of the keys of one call, which may wait.
pub const MAX_KEYS_BYTES: usize = 1 << 18;

/// Something that happens.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A producer wants to make groups.
    Reserve(Reserve),
    /// A producer brings tokens of an item.
    Append(Append),
    /// Values of whole columns and fields of an item that is there. They count from now on: until its group is
    /// delivered, whether it is complete or not.
    Update(Update),
    /// A producer gives groups up.
    Fail {
        /// Which.
        holds: Vec<Hold>,
    },
    /// A producer leaves groups for others to go on with.
    Suspend {
        /// Which.
        holds: Vec<Hold>,
    },
    /// A producer goes on with a group that was left, the oldest first.
    Resume {
        /// Its name.
        source: String,
        /// For how many milliseconds the reservation stands; as the table says, if `None`.
        ttl_ms: Option<u64>,
    },
    /// A producer is still at it.
    Renew {
        /// With which groups.
        holds: Vec<Hold>,
    },
    /// A producer that knows of a group asks what is there of it. Nothing is changed by that.
    Status {
        /// Which.
        hold: Hold,
    },
    /// The learner has another version.
    Publish {
        /// It never falls.
        version: i64,
    },
    /// A consumer wants its share of a batch. What keeps it waiting goes out of its way, unless it is out: groups
    /// that were given back and wait for one that asks for another size, and those that make batches too old on average
    /// where there is no room for younger ones.
    Sample(Want),
    /// A consumer is done with its share.
    Ack(Lease),
    /// A consumer can't use its share.
    Nack(Lease),
    /// A consumer is still at it.
    Extend {
        /// With what.
        lease: Lease,
        /// For how many milliseconds from now on.
        lease_ms: u64,
    },
    /// Complete groups are not wanted after all.
    Remove {
        /// Which.
        groups: Vec<u64>,
    },
    /// Some groups are to be drawn more often than others.
    Reprioritize {
        /// A group, and its priority.
        priorities: Vec<(u64, f64)>,
    },
    /// Time has passed, and something was over.
    Tick,
    /// Groups are reserved this many versions ahead.
    Deepen {
        /// At most as many as the bound.
        depth: u32,
    },
    /// The learner went back to a version that it had saved.
    Restore {
        /// Which.
        version: i64,
    },
    /// Nothing is reserved and sampled for the time being, or that is over. A table that is opened again is not paused.
    Pause {
        /// Whether it begins.
        paused: bool,
    },
    /// Somebody waits for a later version of the learner. Nothing is changed by that.
    AwaitVersion {
        /// It is to be above this one.
        above: i64,
    },
}

/// See [`Change::Reserve`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reserve {
    /// How many at most.
    pub count: u32,
    /// The producer that wants to make them.
    pub source: String,
    /// What the producer calls the groups, in the order in which they are reserved: as many as there may be, or none.
    /// Others may be called the same: each reservation is a group of its own.
    pub keys: Vec<String>,
    /// The version that the producer has; the learner's, if `None`.
    pub version: Option<i64>,
    /// For how many milliseconds a reservation stands; as the table says, if `None`.
    pub ttl_ms: Option<u64>,
}

/// See [`Change::Append`].
#[derive(Debug, Clone, PartialEq)]
pub struct Append {
    /// To which group.
    pub hold: Hold,
    /// To which of its items.
    pub item: u32,
    /// How many segments the item has before this one: what comes twice is taken once.
    pub sequence: u32,
    /// The tokens.
    pub segment: Arc<Segment>,
    /// The rest of the item, if this is the end of it.
    pub finish: Option<Arc<Finish>>,
    /// How much more likely than others its group is to be drawn.
    pub priority: f64,
}

impl Append {
    /// How many bytes it has of tokens and blobs.
    pub fn bytes(&self) -> usize {
        let blobs = self.finish.iter().flat_map(|finish| &finish.blobs);
        self.segment.bytes.len() + blobs.map(|(_, bytes)| bytes.len()).sum::<usize>()
    }
}

/// See [`Change::Update`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// Of which group.
    pub hold: Hold,
    /// Of which of its items.
    pub item: u32,
    /// What they are.
    pub values: Updates,
}

impl Update {
    /// How many bytes the values of columns have.
    pub fn bytes(&self) -> usize {
        self.values.columns.iter().map(|update| update.bytes.len()).sum()
    }
}

/// How large a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Size {
    /// So many groups in all.
    Groups(u32),
    /// As many groups as have at most this many tokens, for each rank.
    Tokens(u64),
}

/// What ranks should have alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Balance {
    /// Groups go round.
    Count,
    /// Tokens, with the same number of groups each.
    Tokens,
    /// The squares of the items' lengths, with the same number of groups each.
    Squares,
}

/// See [`Change::Sample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Want {
    /// Of the whole batch.
    pub size: Size,
    /// The rank that asks, from 0 on.
    pub rank: u32,
    /// How many share a batch.
    pub ranks: u32,
    /// What they should have alike.
    pub balance: Balance,
    /// For how many milliseconds it is the consumer's; it is done at once, if `None`.
    pub lease_ms: Option<u64>,
    /// How many tokens an item of the share may have, for consumers that lay it out [in
    /// rows](super::super::batch::Form::width); any number, if 0. A share that does not fit is refused, and stays where
    /// it is, lease or not. On a connection the form says it, whatever is here.
    pub width: u32,
}

/// The right to a share of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The number of the batch.
    pub batch: u64,
    /// Whose share.
    pub rank: u32,
    /// How often it was delivered, this time included; more, if that was before a checkpoint from which the table
    /// went on.
    pub attempt: u32,
}

/// What came of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// There is nothing to say.
    Done,
    /// These groups may be made.
    Reserved(Vec<Reservation>),
    /// A group to go on with, and what is there of it.
    Resumed(Reservation, Vec<Item>),
    /// Tokens were taken, or not needed.
    Appended(GroupStatus),
    /// How far the items of a group are, by their places.
    Progress(Vec<Progress>),
    /// How many groups it was true of; of [`Change::AwaitVersion`], the learner's version.
    Count(u64),
    /// A share of a batch.
    Delivered(Share),
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Segments that it has.
    pub segments: u32,
    /// Whether it needs no more.
    pub is_finished: bool,
}

/// A group, and its producer: another one since it was suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The number of the group.
    pub group: u64,
    /// How often it changed hands; more, if it was reserved before a checkpoint from which the table went on, or in a
    /// table that no directory has.
    pub attempt: u32,
}

/// The right to make a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The group.
    pub hold: Hold,
    /// What it is called.
    pub key: String,
    /// The version that its producer gave, or else the learner's.
    pub version: i64,
    /// For how many milliseconds it stands without a sign of life.
    pub ttl_ms: u64,
}

/// Where a group has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupStatus {
    /// More is to come.
    Running,
    /// It is complete.
    Complete,
    /// It was complete, and is not wanted: the filter says so.
    Filtered,
    /// It was given up by its producer, or had too little at its deadline.
    Rejected,
    /// Nothing was heard of its producer for too long.
    Expired,
    /// It is too old.
    Stale,
    /// It is over, and its status is no longer known.
    Over,
    /// It is complete, and in a batch or was before: values come too late. Nothing but an update is answered so.
    Delivered,
}

/// Part of a batch, for one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// The right to it.
    pub lease: Lease,
    /// For how many milliseconds it is the consumer's.
    pub lease_ms: Option<u64>,
    /// The version that the batch will update: t.
    pub target: i64,
    /// Its groups.
    pub groups: Vec<Arc<Group>>,
}

/// Why something waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocked {
    /// As many groups run as may.
    Running(u32),
    /// As many groups are there as may be.
    Full(u32),
    /// More groups would be older than they may be when they are used.
    Ahead {
        /// Groups that were accepted or run.
        groups: u64,
        /// How many may at this version.
        most: u64,
        /// The learner's version.
        version: i64,
    },
    /// What begins now would be too old for the next batch, as the learner has taken more than it has published
    /// versions for.
    Early {
        /// The learner's version.
        version: i64,
        /// The version that the next batch updates.
        target: i64,
    },
    /// Nobody left a group.
    NoneSuspended,
    /// Too few groups are complete.
    TooFew {
        /// Those that could be delivered.
        complete: u64,
        /// Those that are wanted.
        wanted: u64,
    },
    /// Too few groups are complete or made, and no more are reserved before the learner has a later version.
    Unpublished {
        /// Groups that are complete or made.
        there: u64,
        /// Those that are wanted.
        wanted: u64,
        /// What a version uses up: B.
        per_version: u64,
        /// The learner's version.
        version: i64,
        /// The version that it must have.
        needed: i64,
    },
    /// A group that must be in the batch is not complete.
    Incomplete(u64),
    /// The batches before this one were not learned from.
    Shipping {
        /// The learner's version.
        version: i64,
        /// The version that it must have.
        needed: i64,
    },
    /// The groups are too old on average.
    MeanLag,
    /// The groups that could be delivered are with consumers.
    Leased(u64),
    /// Inserts and samples are too far from their ratio, or there is too little.
    Limiter(WaitReason),
    /// The table is paused.
    Paused,
}

impl Blocked {
    /// What it is in a word.
    pub fn reason(self) -> WaitReason {
        match self {
            Self::Running(_) | Self::Full(_) => WaitReason::Capacity,
            Self::Ahead { .. }
            | Self::Early { .. }
            | Self::Unpublished { .. }
            | Self::Shipping { .. }
            | Self::MeanLag => WaitReason::Staleness,
            Self::NoneSuspended | Self::TooFew { .. } | Self::Incomplete(_) => WaitReason::Group,
            Self::Leased(_) => WaitReason::Leased,
            Self::Limiter(reason) => reason,
            Self::Paused => WaitReason::Paused,
        }
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running(most) => write!(f, "{most} groups run, which is max_running"),
            Self::Full(most) => write!(f, "{most} groups are there, which is capacity"),
            Self::Ahead { groups, most, version } => write!(
                f,
                "{groups} groups were accepted or run, and at version {version} {most} may be: more \
                 would be too old when they are used; the learner has to publish its next version"
            ),
            Self::Early { version, target } => write!(
                f,
                "the next batch updates version {target}, for which groups of version {version} are too old: \
                 the groups of that many versions were taken, and the learner has to publish its next version"
            ),
            Self::Unpublished { there, wanted, per_version, version, needed } => {
                write!(
                    f,
                    "{there} groups are complete or made, {wanted} are wanted, and others are reserved when \
                     the learner, which is at version {version}, has published version {needed}"
                )?;
                match wanted > per_version {
                    true => write!(
                        f,
                        "; a version uses up {per_version} groups (batch_groups × batches_per_version), so \
                         larger batches need more than one version each"
                    ),
                    false => Ok(()),
                }
            }
            Self::NoneSuspended => f.write_str("no group was left by its producer"),
            Self::TooFew { complete, wanted } => {
                write!(f, "{complete} groups are complete, and {wanted} are wanted")
            }
            Self::Incomplete(group) => {
                write!(f, "group {group} has to be in this batch, and is not complete")
            }
            Self::Shipping { version, needed } => write!(
                f,
                "the learner is at version {version}, and this batch leaves at version {needed}"
            ),
            Self::MeanLag => f.write_str("the groups that are there are too old on average"),
            Self::Leased(leased) => {
                write!(
                    f,
                    "{leased} groups are with consumers that have not said that they are done"
                )
            }
            Self::Limiter(reason) => write!(f, "{reason}"),
            Self::Paused => f.write_str("the table is paused"),
        }
    }
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// It may be done later.
    #[error("{0}")]
    Blocked(Blocked),
    /// It is invalid, and nothing changed.
    #[error("{what} must be {expected}, got {got}")]
    Value {
        /// Which value.
        what: Cow<'static, str>,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// Another consumer has it now, or none.
    #[error(
        "batch {}, rank {}, attempt {} is not this consumer's any more: {why}",
        .lease.batch, .lease.rank, .lease.attempt
    )]
    Fenced {
        /// What was named.
        lease: Lease,
        /// What became of it.
        why: Cow<'static, str>,
    },
    /// Make rows wider.
    #[error("item {item} of the batch has {length} tokens, more than a row's {width}")]
    TooLong {
        /// Which item of the share.
        item: u32,
        /// Its tokens.
        length: u32,
        /// The most that the consumer can take.
        width: u32,
    },
    /// There is no such group, and there never was.
    #[error("group {0} was never reserved")]
    Unknown(u64),
}

impl From<Blocked> for ChangeError {
    fn from(blocked: Blocked) -> Self {
        Self::Blocked(blocked)
    }
}
