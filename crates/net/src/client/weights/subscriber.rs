//! A store that follows that of a server.
//!
//! An I/O thread sees to it, whose pipeline is a [`WeightFollower`]. When the connection breaks, it comes back; what is
//! there stays there meanwhile.
//!
//! # Invariants
//!
//! 1. Nothing is asked for while the store has no place for it, so nothing waits on its way.
//! 2. A publication in the server's memory is given back when it is not referenced here any more, over the connection
//!    that it came by, or not at all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use echoic_memory::sync::Mutex;
use echoic_replay::WaitReason;
use echoic_replay::stream::Wait;
use echoic_replay::weights::{Publication, WeightStore, WeightsConfig, WeightsError};

use super::follower::WeightFollower;
use crate::address::Address;
use crate::client::reconnector::Reconnector;
use crate::client::{ClientError, Options, io_thread};
use crate::transport::Dial;

/// What the thread and its callers share.
pub(super) struct SubscriberState {
    pub(super) reconnector: Arc<Reconnector>,
    pub(super) store: Arc<WeightStore>,
    /// Publications that are not referenced here any more: on which connection they came, and their numbers.
    released: Mutex<Vec<(u64, u64)>>,
    /// Which connection it is.
    pub(super) connection: AtomicU64,
    /// Bytes received, those of frames' heads included.
    pub(super) received: AtomicU64,
}

/// The end of a publication that lies in the server's memory.
///
/// The store that has the publication is itself kept by what is shared, so a loan keeps nothing.
pub(super) struct Loan {
    pub(super) shared: Weak<SubscriberState>,
    pub(super) connection: u64,
    pub(super) serial: u64,
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        shared.released.lock().push((self.connection, self.serial));
        shared.reconnector.ring();
    }
}

/// Rings when the store has changed.
struct Ring(Weak<SubscriberState>);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.reconnector.ring();
        }
    }
}

impl SubscriberState {
    /// Whether something is to be given back.
    pub(super) fn has_releases(&self) -> bool {
        !self.released.lock().is_empty()
    }

    /// What is to be given back over this connection.
    pub(super) fn releases(&self) -> Vec<u64> {
        let connection = self.connection.load(Ordering::Relaxed);
        let released = std::mem::take(&mut *self.released.lock());
        // This server need not know what came over another connection.
        released.into_iter().filter(|(of, _)| *of == connection).map(|(_, serial)| serial).collect()
    }

    pub(super) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Relaxed)
    }
}

/// A worker elsewhere: has the latest publication of a server.
pub struct WeightSubscriber {
    shared: Arc<SubscriberState>,
}

impl WeightSubscriber {
    /// Follows the weights of the server that `dial` reaches, with at most `most` publications in memory of our
    /// own. It connects in the background: see [`WeightSubscriber::wait_until_connected`].
    pub fn new(dial: Box<dyn Dial>, options: Options, most: usize) -> Result<Self, ClientError> {
        let system = |error: std::io::Error| ClientError::System(error.to_string());
        let config = WeightsConfig { most, shared: false, follows: true };
        let store = WeightStore::new(config);
        let store = store.map_err(|error| ClientError::System(error.to_string()))?;
        let store = Arc::new(store);
        let told = Arc::clone(&store);
        let (reconnector, wakes) =
            Reconnector::new(dial, options, move || told.nudge()).map_err(system)?;
        let shared = Arc::new(SubscriberState {
            reconnector: Arc::new(reconnector),
            store,
            released: Mutex::default(),
            connection: AtomicU64::new(0),
            received: AtomicU64::new(0),
        });
        let waker = Waker::from(Arc::new(Ring(Arc::downgrade(&shared))));
        let follower = WeightFollower::new(Arc::clone(&shared), waker);
        io_thread::spawn(&shared.reconnector, wakes, follower, |driver| driver, |_| {})
            .map_err(system)?;
        Ok(Self { shared })
    }

    /// Where the server is.
    pub fn address(&self) -> Address {
        self.shared.reconnector.address()
    }

    /// What has come so far.
    pub fn store(&self) -> &Arc<WeightStore> {
        &self.shared.store
    }

    /// Whether a connection stands.
    pub fn is_connected(&self) -> bool {
        self.shared.reconnector.stands()
    }

    /// How often it came back.
    pub fn returns(&self) -> u64 {
        self.shared.reconnector.returns()
    }

    /// Bytes received.
    pub fn received_bytes(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Waits until the server has accepted this client.
    pub fn wait_until_connected(&self, wait: Wait<'_>) -> Result<(), ClientError> {
        let reconnector = &self.shared.reconnector;
        let waited = self.shared.store.wait_for(wait, |_| reconnector.stands().then_some(()));
        waited.map_err(|error| self.failure(&error))
    }

    /// Waits until `look` finds something, given the latest publication, if one has come.
    pub fn wait_for<T>(
        &self,
        wait: Wait<'_>,
        look: impl FnMut(Option<&Arc<Publication>>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.shared.store.wait_for(wait, look).map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &WeightsError) -> ClientError {
        let reconnector = &self.shared.reconnector;
        match error {
            WeightsError::TimedOut(_) if reconnector.stands() => {
                ClientError::TimedOut(WaitReason::Network)
            }
            WeightsError::TimedOut(_) => ClientError::TimedOut(WaitReason::Away),
            WeightsError::Interrupted => ClientError::Interrupted,
            _ => reconnector.ending().unwrap_or(ClientError::Closed),
        }
    }

    /// Lets go of the server. What has come stays for as long as it is referenced.
    pub fn close(&self) {
        self.shared.reconnector.close();
        self.shared.store.close();
    }
}

impl Drop for WeightSubscriber {
    fn drop(&mut self) {
        self.close();
    }
}
