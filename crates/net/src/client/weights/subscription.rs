//! What a worker sees of a store of weights, in this process or elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use echoic_replay::stream::Wait;
use echoic_replay::weights::{Publication, Seat, WeightStore, WeightsError};

use super::WeightSubscriber;
use crate::client::ClientError;

/// Where publications come from.
pub enum WeightSource {
    /// The store of this process.
    Local(Arc<WeightStore>),
    /// A server's.
    Remote(Arc<WeightSubscriber>),
}

/// Why there is no publication.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SubscriptionError {
    /// The store of this process has none.
    #[error(transparent)]
    Local(#[from] WeightsError),
    /// None came from the server.
    #[error(transparent)]
    Remote(#[from] ClientError),
    /// Use another subscription.
    #[error("the subscription is closed")]
    Closed,
}

/// A view of the latest publication of a store, which knows what was seen.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::sync::Arc;
///
/// use echoic_net::client::weights::{Subscription, WeightSource};
/// use echoic_replay::stream::Wait;
/// use echoic_replay::weights::WeightStore;
///
/// let store = Arc::new(WeightStore::default());
/// let subscription = Subscription::new(WeightSource::Local(Arc::clone(&store)));
/// store.publish_version(7)?;
/// let wait = Wait { deadline: None, tick: None, on_tick: &mut |_| ControlFlow::Continue(()) };
/// assert_eq!(subscription.wait(None, wait)?.version(), 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Subscription {
    source: WeightSource,
    seat: Seat,
    /// The last publication that was given out.
    seen: AtomicU64,
    is_closed: AtomicBool,
}

impl Subscription {
    /// To what is published there from now on, and to the latest publication.
    pub fn new(source: WeightSource) -> Self {
        let seat = source.store().subscribe();
        Self { source, seat, seen: AtomicU64::new(0), is_closed: AtomicBool::new(false) }
    }

    /// The store that has what came.
    pub fn store(&self) -> &Arc<WeightStore> {
        self.source.store()
    }

    /// The latest publication, if there is one.
    pub fn latest(&self) -> Option<Arc<Publication>> {
        self.store().latest().map(|latest| self.give(latest))
    }

    /// Waits for a publication that was not given out, or, if a version is named, for one above it.
    pub fn wait(
        &self,
        newer_than: Option<u64>,
        wait: Wait<'_>,
    ) -> Result<Arc<Publication>, SubscriptionError> {
        let seen = self.seen.load(Ordering::Relaxed);
        let look = |latest: Option<&Arc<Publication>>| {
            if self.is_closed() {
                return Some(None);
            }
            let latest = latest?;
            let is_new = match newer_than {
                None => latest.serial() > seen,
                Some(version) => latest.version() > version,
            };
            is_new.then(|| Some(Arc::clone(latest)))
        };
        let found = match &self.source {
            WeightSource::Local(store) => store.wait_for(wait, look)?,
            WeightSource::Remote(remote) => remote.wait_for(wait, look)?,
        };
        found.map(|found| self.give(found)).ok_or(SubscriptionError::Closed)
    }

    fn give(&self, publication: Arc<Publication>) -> Arc<Publication> {
        self.seen.fetch_max(publication.serial(), Ordering::Relaxed);
        self.seat.see(&publication);
        publication
    }

    /// Whether what is published comes here.
    pub fn is_connected(&self) -> bool {
        match &self.source {
            WeightSource::Local(store) => !store.is_closed(),
            WeightSource::Remote(remote) => remote.is_connected(),
        }
    }

    /// How often a connection came back; of the store of this process never.
    pub fn reconnects(&self) -> u64 {
        match &self.source {
            WeightSource::Local(_) => 0,
            WeightSource::Remote(remote) => remote.returns(),
        }
    }

    /// Bytes received over a connection.
    pub fn received_bytes(&self) -> u64 {
        match &self.source {
            WeightSource::Local(_) => 0,
            WeightSource::Remote(remote) => remote.received_bytes(),
        }
    }

    /// Ends it, and wakes the threads that wait in it.
    pub fn close(&self) {
        self.abandon();
        self.store().nudge();
    }

    /// Ends it without a lock: in a forked child no thread waits, and a lock may never be free.
    pub fn abandon(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Whether it was ended.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

impl WeightSource {
    fn store(&self) -> &Arc<WeightStore> {
        match self {
            Self::Local(store) => store,
            Self::Remote(remote) => remote.store(),
        }
    }
}
