//! The store of weights of a server, for learners and workers of one process.

use std::sync::Arc;

use echoic_memory::sync::Mutex;
use echoic_replay::stream::Wait;
use echoic_replay::weights::{Publication, WeightStore, WeightsConfig, WeightsError};

use super::{
    PublishError, SharedPublisher, Subscription, WeightPublisher, WeightSource, WeightSubscriber,
};
use crate::client::{ClientError, Options};
use crate::transport::Dial;

/// A client of a server's store of weights, which many threads may share.
///
/// What is to be published is drafted in [`RemoteWeights::outgoing`], a store of its own, so a learner's arrays may
/// change while it is on its way. All subscriptions share one connection, which is made with the first.
pub struct RemoteWeights {
    options: Options,
    most: usize,
    outgoing: WeightStore,
    publisher: SharedPublisher,
    follower: Mutex<Follower>,
}

enum Follower {
    /// Nobody has subscribed.
    None,
    Since(Arc<WeightSubscriber>),
    Closed,
}

impl RemoteWeights {
    /// A client of the server that `dial` reaches, with at most `most` publications that came in memory. It connects
    /// when there is something to publish.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when there is no memory.
    pub fn new(dial: Box<dyn Dial>, options: Options, most: usize) -> Result<Self, WeightsError> {
        let config = WeightsConfig { most: 2, shared: false, follows: true };
        let outgoing = WeightStore::new(config)?;
        let publisher = WeightPublisher::new(dial, options.token.clone());
        let publisher = SharedPublisher::new(publisher.with_name(options.name.clone()));
        Ok(Self { options, most, outgoing, publisher, follower: Mutex::new(Follower::None) })
    }

    /// Where publications are drafted.
    pub fn outgoing(&self) -> &WeightStore {
        &self.outgoing
    }

    /// Publishes something there.
    pub fn publish(
        &self,
        publication: &Arc<Publication>,
        wait: Wait<'_>,
    ) -> Result<(), PublishError> {
        self.publisher.publish(publication, wait)
    }

    /// A view of what is published there; with the first one it connects, by `dial`.
    pub fn subscribe(
        &self,
        dial: Box<dyn Dial>,
        wait: Wait<'_>,
    ) -> Result<Subscription, ClientError> {
        let known = self.follower.lock().get()?;
        let follower = match known {
            Some(known) => known,
            None => {
                let made = WeightSubscriber::new(dial, self.options.clone(), self.most)?;
                made.wait_until_connected(wait)?;
                let mut follower = self.follower.lock();
                // Another thread may have been faster.
                follower.get()?.unwrap_or_else(|| {
                    let made = Arc::new(made);
                    *follower = Follower::Since(Arc::clone(&made));
                    made
                })
            }
        };
        Ok(Subscription::new(WeightSource::Remote(follower)))
    }

    /// Lets go of the server, and ends what is being published. What has come stays for as long as it is referenced.
    pub fn close(&self) {
        let follower = std::mem::replace(&mut *self.follower.lock(), Follower::Closed);
        if let Follower::Since(follower) = follower {
            follower.close();
        }
        self.outgoing.close();
        self.publisher.close();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        matches!(&*self.follower.lock(), Follower::Closed)
    }
}

impl Follower {
    fn get(&self) -> Result<Option<Arc<WeightSubscriber>>, ClientError> {
        match self {
            Self::None => Ok(None),
            Self::Since(known) => Ok(Some(Arc::clone(known))),
            Self::Closed => Err(ClientError::Closed),
        }
    }
}
