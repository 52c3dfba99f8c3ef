//! What a table was told, as bytes: for clients, checkpoints and journals.

use super::codec::Put;
use super::config::{Delivery, OnExpiry, OnStale, Order, RolloutConfig};
use super::filter::Filter;
use super::schema::{Column, MAX_COLUMNS, Schema};
use crate::codec::{CodecError, Reader};
use crate::limiter::Parameters;
use crate::spec::Dtype;

fn put_dtype(out: &mut impl Put, dtype: Dtype) {
    let (kind, bytes) = match dtype {
        Dtype::Bool => (0, 1),
        Dtype::Int(bytes) => (1, bytes.into()),
        Dtype::UInt(bytes) => (2, bytes.into()),
        Dtype::Float(bytes) => (3, bytes.into()),
        Dtype::BFloat16 => (4, 2),
        Dtype::Complex(bytes) => (5, bytes.into()),
        Dtype::Bytes(bytes) => (6, bytes),
    };
    out.put_u8(kind);
    out.put_u32(bytes);
}

fn take_dtype(take: &mut Reader<'_>) -> Result<Dtype, CodecError> {
    let (kind, bytes) = (take.u8("kind of a type")?, take.u32("size of a type")?);
    let narrow = |sizes: &[u32]| {
        let wrong = CodecError::Meaningless { field: "size of a type", got: bytes.into() };
        if sizes.contains(&bytes) { Ok(bytes as u8) } else { Err(wrong) }
    };
    Ok(match kind {
        0 => narrow(&[1]).map(|_| Dtype::Bool)?,
        1 => Dtype::Int(narrow(&[1, 2, 4, 8])?),
        2 => Dtype::UInt(narrow(&[1, 2, 4, 8])?),
        3 => Dtype::Float(narrow(&[2, 4, 8])?),
        4 => narrow(&[2]).map(|_| Dtype::BFloat16)?,
        5 => Dtype::Complex(narrow(&[8, 16])?),
        6 => Dtype::Bytes(bytes),
        got => return Err(CodecError::Meaningless { field: "kind of a type", got: got.into() }),
    })
}

fn put_columns(out: &mut impl Put, columns: &[Column]) {
    out.put_u32(columns.len() as u32);
    for column in columns {
        out.put_text(&column.name);
        put_dtype(out, column.dtype);
    }
}

fn take_columns(take: &mut Reader<'_>) -> Result<Vec<Column>, CodecError> {
    let count = take.count("number of columns", MAX_COLUMNS as u32, 9)?;
    let column =
        |_| Ok(Column { name: take.string("name of a column")?, dtype: take_dtype(take)? });
    (0..count).map(column).collect()
}

/// The places in a list of what something can be.
fn one_of<T: Copy>(field: &'static str, all: &[T], number: u8) -> Result<T, CodecError> {
    let wrong = CodecError::Meaningless { field, got: number.into() };
    all.get(usize::from(number)).copied().ok_or(wrong)
}

fn maybe_u32(take: &mut Reader<'_>, field: &'static str) -> Result<Option<u32>, CodecError> {
    let narrow = |got| u32::try_from(got).map_err(|_| CodecError::Meaningless { field, got });
    take.maybe(field)?.map(narrow).transpose()
}

impl RolloutConfig {
    /// Appends it.
    pub fn put(&self, out: &mut impl Put) {
        out.put_text(&self.name);
        put_columns(out, &self.schema.columns);
        put_columns(out, &self.schema.fields);
        out.put_maybe(self.schema.mask.map(|mask| mask as u64));
        for number in [
            self.group_size,
            self.redundancy,
            self.min_group_size,
            self.batch_groups,
            self.batches_per_version,
            self.max_running,
            self.max_groups,
            self.max_tokens,
            self.max_blob_bytes,
            self.max_uses,
        ] {
            out.put_u32(number);
        }
        out.put_maybe(self.group_deadline_ms);
        for number in [self.max_lag, self.pipeline_depth, self.target_lag] {
            out.put_maybe(number.map(u64::from));
        }
        out.put_u8(self.auto_tune.into());
        let (order, window) = match self.order {
            Order::Ready => (0, 0),
            Order::Submission => (1, 0),
            Order::Window(window) => (2, window),
            Order::Freshest => (3, 0),
            Order::Oldest => (4, 0),
            Order::Weighted => (5, 0),
        };
        out.put_u8(order);
        out.put_u32(window);
        out.put_u8(self.on_stale as u8);
        out.put_u8(self.delivery as u8);
        out.put_u8(self.on_expiry as u8);
        out.put_f64(self.max_mean_lag.unwrap_or(f64::INFINITY));
        out.put_u64(self.permit_ttl_ms);
        out.put_u64(self.seed);
        let filter = self.filter.as_ref().map(ToString::to_string).unwrap_or_default();
        out.put_u32(filter.len() as u32);
        out.put(filter.as_bytes());
        out.put_u8(self.limiter.is_some().into());
        if let Some(parameters) = self.limiter {
            out.put_u64(parameters.min_size);
            out.put_f64(parameters.samples_per_insert);
            out.put_f64(parameters.min_diff);
            out.put_f64(parameters.max_diff);
        }
    }

    /// Reads it. Whether it can work is for [`RolloutConfig::check`] to say.
    pub fn take(take: &mut Reader<'_>) -> Result<Self, CodecError> {
        let name = take.string("name of a table")?;
        let (columns, fields) = (take_columns(take)?, take_columns(take)?);
        let mask = take.maybe("mask")?.map(|mask| mask as usize);
        let mut numbers = [0; 10];
        for number in &mut numbers {
            *number = take.u32("setting")?;
        }
        let [
            group_size,
            redundancy,
            min_group_size,
            batch_groups,
            batches_per_version,
            max_running,
            max_groups,
            max_tokens,
            max_blob_bytes,
            max_uses,
        ] = numbers;
        let group_deadline_ms = take.maybe("group_deadline")?;
        let max_lag = maybe_u32(take, "max_lag")?;
        let pipeline_depth = maybe_u32(take, "pipeline_depth")?;
        let target_lag = maybe_u32(take, "target_lag")?;
        let auto_tune = take.flag("auto_tune")?;
        let (order, window) = (take.u8("order")?, take.u32("window")?);
        let orders = [
            Order::Ready,
            Order::Submission,
            Order::Window(window),
            Order::Freshest,
            Order::Oldest,
            Order::Weighted,
        ];
        let stales = [OnStale::Drop, OnStale::Wait, OnStale::Keep, OnStale::Mask];
        let deliveries = [Delivery::AtLeastOnce, Delivery::AtMostOnce];
        let order = one_of("order", &orders, order)?;
        // What means nothing is zero, so that settings are written in one way only.
        if window != 0 && !matches!(order, Order::Window(_)) {
            return Err(CodecError::Meaningless { field: "window", got: window.into() });
        }
        let on_stale = one_of("on_stale", &stales, take.u8("on_stale")?)?;
        let delivery = one_of("delivery", &deliveries, take.u8("delivery")?)?;
        let expiries = [OnExpiry::Reject, OnExpiry::Suspend];
        let on_expiry = one_of("on_expiry", &expiries, take.u8("on_expiry")?)?;
        let mean = take.f64("max_mean_lag")?;
        let (permit_ttl_ms, seed) = (take.u64("permit_ttl")?, take.u64("seed")?);
        let len = take.count("bytes of a filter", super::filter::MAX_LENGTH as u32 * 2, 1)?;
        let filter = std::str::from_utf8(take.bytes("filter", len)?);
        let filter = match filter.map_err(|_| CodecError::NotText { field: "filter" })? {
            "" => None,
            text => {
                let wrong = CodecError::Meaningless { field: "filter", got: len as u64 };
                let filter = Filter::parse(text).map_err(|_| wrong.clone())?;
                if filter.to_string() != text {
                    return Err(wrong);
                }
                Some(filter)
            }
        };
        let limiter = match take.flag("limiter")? {
            false => None,
            true => Some(Parameters {
                min_size: take.u64("min_size")?,
                samples_per_insert: take.f64("samples_per_insert")?,
                min_diff: take.f64("min_diff")?,
                max_diff: take.f64("max_diff")?,
            }),
        };
        Ok(Self {
            name,
            schema: Schema { columns, fields, mask },
            group_size,
            redundancy,
            group_deadline_ms,
            min_group_size,
            batch_groups,
            batches_per_version,
            max_lag,
            pipeline_depth,
            auto_tune,
            max_running,
            max_groups,
            max_tokens,
            max_blob_bytes,
            order,
            on_stale,
            target_lag,
            max_mean_lag: (mean != f64::INFINITY).then_some(mean),
            max_uses,
            delivery,
            permit_ttl_ms,
            on_expiry,
            filter,
            limiter,
            seed,
        })
    }
}
