//! A ledger with a clock that tests advance; all lists are recounted after each change.
//! And what is put into it.

use std::sync::Arc;

use echoic_replay::rollouts::item::{ColumnUpdate, Finish, Group, Run, Segment, Updates};
use echoic_replay::rollouts::ledger::{
    Append, Balance, Blocked, Change, ChangeError, GroupStatus, Hold, Lease, Ledger, Outcome,
    Reservation, Reserve, Share, Size, Update, Want,
};
use echoic_replay::rollouts::{Late, RolloutConfig};

use crate::settings::plain;

/// The lease of shares, and the life of reservations, in milliseconds.
pub const LEASE: u64 = 1_000;
pub const TTL: u64 = 100;

/// Groups of one item, two of them a batch, which is one version.
pub fn config() -> RolloutConfig {
    RolloutConfig {
        group_size: 1,
        max_lag: Some(1),
        max_running: 100,
        capacity: 100,
        reservation_ttl_ms: TTL,
        ..plain()
    }
}

/// As [`config`], where versions pace nobody.
pub fn unpaced() -> RolloutConfig {
    RolloutConfig { max_lag: None, ..config() }
}

/// Groups of two items of three, with bounds that are met soon.
pub fn pairs() -> RolloutConfig {
    RolloutConfig {
        redundancy: 1,
        max_lag: Some(2),
        max_running: 8,
        capacity: 16,
        max_tokens: 64,
        max_blob_bytes: 64,
        ..plain()
    }
}

/// Tokens of a version, which differ by `mark`.
pub fn segment(version: i64, tokens: u32, mark: u32) -> Arc<Segment> {
    let ids = (0..tokens).flat_map(|at| (mark.wrapping_mul(31) + at).to_le_bytes());
    let bytes = ids.chain((0..tokens).map(|_| 1)).collect();
    let runs = if tokens == 0 { vec![] } else { vec![Run { version, tokens }] };
    Arc::new(Segment { runs: runs.into(), tokens, bytes, absent: 0 })
}

/// What may come late in some tables: the mask and the reward.
pub const LATE: Late = Late { columns: 2, fields: 1 };

/// As [`segment`], without its mask.
pub fn unmasked(version: i64, tokens: u32, mark: u32) -> Arc<Segment> {
    let mut segment = Segment::clone(&segment(version, tokens, mark));
    segment.bytes.truncate(4 * tokens as usize);
    segment.absent = if tokens == 0 { 0 } else { LATE.columns };
    Arc::new(segment)
}

/// An end without its reward.
pub fn unrewarded() -> Option<Arc<Finish>> {
    Some(Arc::new(Finish { fields: vec![0; 8], absent: LATE.fields, blobs: Vec::new() }))
}

/// The mask of so many tokens of an item, and its reward.
pub fn update(hold: Hold, item: u32, tokens: u32, reward: f64) -> Update {
    let bytes = Arc::new(vec![7; tokens as usize]);
    let columns = vec![ColumnUpdate { column: 1, tokens, bytes }];
    let fields = vec![(0, reward.to_le_bytes().to_vec())];
    Update { hold, item, values: Updates { columns, fields } }
}

/// The end of an item: its reward, and a blob of this many bytes.
pub fn finish(reward: f64, blob: u32) -> Option<Arc<Finish>> {
    let blobs = match blob {
        0 => Vec::new(),
        len => vec![("text".to_owned(), Arc::new(vec![len as u8; len as usize]))],
    };
    Some(Arc::new(Finish { fields: reward.to_le_bytes().to_vec(), absent: 0, blobs }))
}

/// Some tokens of an item, which is then finished.
pub fn whole(hold: Hold, item: u32, version: i64, tokens: u32) -> Append {
    let (segment, finish) = (segment(version, tokens, 0), finish(0.0, 0));
    Append { hold, item, sequence: 0, segment, finish, priority: 1.0 }
}

/// As [`whole`], where everything differs by `mark`.
pub fn marked(hold: Hold, item: u32, version: i64, mark: u32) -> Change {
    Change::Append(Append {
        segment: segment(version, 3 + mark % 5, mark),
        finish: finish(f64::from(mark % 7), mark % 3),
        priority: 1.0 + f64::from(mark % 4),
        ..whole(hold, item, version, 0)
    })
}

/// A token of an item that goes on.
pub fn part(hold: Hold, item: u32, sequence: u32, version: i64) -> Append {
    Append { sequence, finish: None, ..whole(hold, item, version, 1) }
}

pub fn reserve(count: u32) -> Change {
    Change::Reserve(Reserve { count, source: "s".into(), ..Reserve::default() })
}

pub fn want(groups: u32, lease_ms: Option<u64>) -> Want {
    let (size, balance) = (Size::Groups(groups), Balance::Count);
    Want { size, rank: 0, ranks: 1, balance, lease_ms, width: 0 }
}

pub fn groups(count: u32) -> Want {
    want(count, Some(LEASE))
}

pub fn ids(share: &Share) -> Vec<u64> {
    share.groups.iter().map(|group| group.id).collect()
}

pub fn lags(share: &Share) -> Vec<i64> {
    share.groups.iter().map(|group| share.target - group.oldest).collect()
}

/// The version of the oldest token, recounted.
pub fn oldest(group: &Group) -> i64 {
    let runs = group.items.iter().flat_map(|item| item.runs());
    runs.map(|run| run.version).min().unwrap_or(group.dispatched)
}

/// Why a change waits.
pub fn blocked<T: std::fmt::Debug>(result: Result<T, ChangeError>) -> Blocked {
    match result {
        Err(ChangeError::Blocked(blocked)) => blocked,
        other => panic!("expected something to wait for, got {other:?}"),
    }
}

pub struct Table {
    pub ledger: Ledger,
    pub now: u64,
    changes: usize,
}

impl Table {
    pub fn new(config: RolloutConfig) -> Self {
        Self { ledger: Ledger::new(Arc::new(config)).expect("a ledger"), now: 0, changes: 0 }
    }

    pub fn apply(&mut self, change: Change) -> Result<Outcome, ChangeError> {
        let outcome = self.ledger.apply(self.now, &change);
        self.changes += 1;
        // That takes time in proportion to what is there, so in long tests it is done now and then.
        if (self.changes < 50 || self.changes.is_multiple_of(16))
            && let Err(wrong) = self.ledger.recount()
        {
            panic!("after {change:?}: {wrong}");
        }
        outcome
    }

    /// Lets time pass, and what is due happen.
    pub fn pass(&mut self, millis: u64) {
        self.now += millis;
        self.apply(Change::Tick).expect("time passes");
    }

    pub fn reserve(&mut self, count: u32) -> Result<Vec<Reservation>, ChangeError> {
        self.reserve_as(Reserve { count, ..Reserve::default() })
    }

    pub fn reserve_as(&mut self, reserve: Reserve) -> Result<Vec<Reservation>, ChangeError> {
        match self.apply(Change::Reserve(reserve))? {
            Outcome::Reserved(reservations) => Ok(reservations),
            other => panic!("reserved, got {other:?}"),
        }
    }

    /// One group that may be made.
    pub fn open(&mut self) -> Hold {
        self.reserve(1).expect("room")[0].hold
    }

    pub fn append(&mut self, append: Append) -> GroupStatus {
        match self.apply(Change::Append(append)).expect("tokens that make sense") {
            Outcome::Appended(status) => status,
            other => panic!("appended, got {other:?}"),
        }
    }

    /// A group that is complete, of one token of a version for each item. Its number.
    pub fn group(&mut self, version: i64) -> u64 {
        let hold = self.open();
        self.complete(hold, version);
        hold.group
    }

    pub fn complete(&mut self, hold: Hold, version: i64) -> GroupStatus {
        let size = self.ledger.config().group_size;
        (0..size).map(|item| self.append(whole(hold, item, version, 1))).last().expect("an item")
    }

    pub fn publish(&mut self, version: i64) {
        self.apply(Change::Publish { version }).expect("a later version");
    }

    pub fn sample(&mut self, want: Want) -> Result<Share, ChangeError> {
        match self.apply(Change::Sample(want))? {
            Outcome::Delivered(share) => Ok(share),
            other => panic!("delivered, got {other:?}"),
        }
    }

    /// So many groups in one share.
    pub fn take(&mut self, count: u32) -> Result<Share, ChangeError> {
        self.sample(groups(count))
    }

    pub fn taken(&mut self, count: u32) -> Vec<u64> {
        ids(&self.take(count).expect("a batch"))
    }

    pub fn ack(&mut self, lease: Lease) {
        self.apply(Change::Ack(lease)).expect("the consumer's");
    }

    pub fn room(&self) -> u64 {
        self.ledger.totals().room
    }

    pub fn queued(&self) -> u64 {
        self.ledger.totals().queued
    }
}
