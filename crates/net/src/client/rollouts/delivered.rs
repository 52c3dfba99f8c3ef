//! A share of a batch, as it came.

use std::ops::Range;

use echoic_memory::arena::AnswerBuffer;
use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::batch::Head;

use crate::buffer_pool::PooledBuffer;
use crate::client::payload::Payload;
use crate::wire::WireError;
use crate::wire::rollouts::DeliveryHead;

/// A share of a batch, in memory of this client or in memory that is shared with the server.
#[derive(Debug)]
pub struct Delivered {
    head: Head,
    payload: Payload,
    /// Where its arrays are.
    range: Range<usize>,
}

impl Delivered {
    /// A share whose payload was read into a buffer: where it begins there, and where it ends.
    pub(in crate::client) fn read<'a>(
        pooled: PooledBuffer,
        start: usize,
        end: usize,
        config: impl FnOnce(u64) -> Option<&'a RolloutConfig>,
    ) -> Result<Option<(u64, Self)>, WireError> {
        let payload = pooled.get(start..end).unwrap_or_default();
        let (delivery, used) = DeliveryHead::read(payload, payload.len())?;
        let Some(config) = config(delivery.id) else { return Ok(None) };
        let len = delivery.bytes(config)?;
        let (first, last) = DeliveryHead::place(used, len)?;
        if last != payload.len() {
            let (expected, got) = (last as u64, payload.len() as u64);
            return Err(WireError::Sequence { field: "length of a batch", expected, got });
        }
        let DeliveryHead { id, head } = delivery;
        let range = start + first..start + first + len;
        Ok(Some((id, Self { head, payload: Payload::Pooled(pooled), range })))
    }

    /// A share whose arrays the server has written at a place.
    pub(in crate::client) fn placed(
        delivery: DeliveryHead,
        place: AnswerBuffer,
        config: &RolloutConfig,
    ) -> Result<Self, WireError> {
        let (len, limit) = (delivery.bytes(config)?, place.len());
        if len > limit {
            let (limit, got) = (limit as u64, len as u64);
            return Err(WireError::too_large("length of a batch", limit, got));
        }
        Ok(Self { head: delivery.head, payload: Payload::Placed(place), range: 0..len })
    }

    /// What belongs to it beside its arrays.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Its arrays, which lie where `head().shape.arrays(config)` says. They begin at a multiple of 64 in memory.
    pub fn bytes(&self) -> &[u8] {
        &self.payload[self.range.clone()]
    }

    /// As [`Delivered::bytes`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.payload[self.range.clone()]
    }

    /// Whether the server has written it where it is, into memory that is shared with it.
    pub fn is_shared(&self) -> bool {
        self.payload.is_shared()
    }
}
