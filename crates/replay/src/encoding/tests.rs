//! Every form of every dtype gives back what went in, also where a policy would not have used the
//! form.

use std::sync::Arc;

use proptest::prelude::*;

use super::{Encoding, codec};
use crate::chunk::{Chunk, ColumnKind};
use crate::rng::Rng;
use crate::spec::Dtype;

pub(super) const DTYPES: [Dtype; 17] = [
    Dtype::Bool,
    Dtype::Int(1),
    Dtype::Int(2),
    Dtype::Int(4),
    Dtype::Int(8),
    Dtype::UInt(1),
    Dtype::UInt(2),
    Dtype::UInt(4),
    Dtype::UInt(8),
    Dtype::Float(2),
    Dtype::Float(4),
    Dtype::Float(8),
    Dtype::BFloat16,
    Dtype::Complex(8),
    Dtype::Complex(16),
    Dtype::Bytes(1),
    Dtype::Bytes(11),
];

/// Bytes of any kind that columns have.
fn values(how: u8, seed: u64, len: usize) -> Box<[u8]> {
    let mut rng = Rng::new(seed);
    let constant = rng.next() as u8;
    (0..len)
        .map(|at| match how {
            0 => constant,
            1 => rng.next() as u8,
            2 => (at / 16) as u8,
            // Words that count up, whatever their width.
            3 => ((at as u64 / 8 * 1000) >> (8 * (at % 8))) as u8,
            _ if rng.below(10) == 0 => rng.next() as u8,
            _ => constant,
        })
        .collect()
}

fn forced(kind: &Arc<ColumnKind>, len: u32, encoding: Encoding, raw: &[u8]) -> Chunk {
    let packed = codec::pack(encoding, kind, raw).unwrap();
    Chunk::from_encoded(Arc::clone(kind), len, encoding, packed).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_form_gives_back_what_went_in(
        shape in prop::collection::vec(1..6usize, 0..4), len in 1..40u32, how in 0..5u8,
        seed in any::<u64>(), slice in any::<(u32, u32)>(),
    ) {
        for dtype in DTYPES {
            let kind = Arc::new(ColumnKind { dtype, shape: shape.clone() });
            let step = kind.step_bytes().unwrap();
            let raw = values(how, seed, step * len as usize);
            let offset = slice.0 % len;
            let end = offset + slice.1 % (len - offset + 1);
            let part = offset as usize * step..end as usize * step;
            for encoding in Encoding::ALL {
                let chunk = forced(&kind, len, encoding, &raw);
                let mut all = vec![0xee; raw.len()];
                chunk.copy_to(0, &mut all);
                prop_assert_eq!(&all[..], &raw[..], "{} of {}", encoding, dtype);
                let mut some = vec![0xee; part.len()];
                chunk.copy_to(offset, &mut some);
                prop_assert_eq!(&some[..], &raw[part.clone()], "{} of {}", encoding, dtype);
            }
        }
    }

    /// Decoders meet bytes that no encoder wrote: they say so, or give as many bytes as they
    /// should.
    #[test]
    fn bytes_that_were_never_encoded_are_refused_or_decode(
        bytes in prop::collection::vec(any::<u8>(), 0..200), len in 1..20u32, how in 0..5u8,
        at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let kind = Arc::new(ColumnKind { dtype: Dtype::Int(2), shape: vec![3] });
        let raw = values(how, 1, 6 * len as usize);
        for encoding in Encoding::ALL {
            let mut damaged = codec::pack(encoding, &kind, &raw).unwrap();
            damaged[at.index(raw.len()) % damaged.len().max(1)] = byte;
            for bytes in [&damaged, &bytes[..]] {
                let read = Chunk::from_encoded(Arc::clone(&kind), len, encoding, bytes.into());
                if let Ok(chunk) = read {
                    chunk.copy_to(0, &mut vec![0; raw.len()]);
                    chunk.copy_to(len - 1, &mut [0; 6]);
                }
            }
        }
    }
}

#[test]
fn differences_make_smooth_columns_much_smaller() {
    let column = |dtype, value: &dyn Fn(u32) -> Vec<u8>| {
        let kind = Arc::new(ColumnKind { dtype, shape: vec![] });
        let raw: Vec<u8> = (0..2000).flat_map(value).collect();
        let size = |encoding| codec::pack(encoding, &kind, &raw).unwrap().len();
        (size(Encoding::Zstd), size(Encoding::DeltaZstd), raw.len())
    };
    let (plain, delta, raw) =
        column(Dtype::Int(8), &|step| (i64::from(step) * 17).to_le_bytes().into());
    assert!(delta * 50 < raw && delta * 10 < plain, "{delta} of {raw}, {plain} without");
    let (plain, delta, raw) =
        column(Dtype::Float(4), &|step| (10.0 + step as f32 * 1e-3).to_le_bytes().into());
    assert!(delta * 2 < raw && delta * 4 < plain * 3, "{delta} of {raw}, {plain} without");
}
