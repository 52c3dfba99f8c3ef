//! One number out of a step or a field, or to compare it with.

use std::cmp::Ordering;

use crate::chunk::ColumnKind;
use crate::spec::Dtype;

/// A number, exact: integers are not rounded to floats.
#[derive(Debug, Clone, Copy)]
pub enum Scalar {
    /// Of any integer type, or a boolean as 0 or 1.
    Int(i128),
    /// Of any float type.
    Float(f64),
}

impl Scalar {
    /// Nearest float.
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// The remainder of a division by a positive number: never negative.
    pub(crate) fn remainder(self, modulo: u32) -> Self {
        match self {
            Self::Int(value) => Self::Int(value.rem_euclid(modulo.into())),
            Self::Float(value) => Self::Float(value.rem_euclid(modulo.into())),
        }
    }

    /// Whether the steps of a column are numbers.
    pub(crate) fn fits(kind: &ColumnKind) -> bool {
        kind.shape.iter().all(|axis| *axis == 1) && Self::has(kind.dtype)
    }

    /// Whether the values of a dtype are numbers.
    pub(crate) fn has(dtype: Dtype) -> bool {
        let is_real = !matches!(dtype, Dtype::Complex(_) | Dtype::Bytes(_));
        is_real && (1..=8).contains(&dtype.itemsize())
    }

    /// The number in the bytes of a dtype that [has](Self::has) numbers.
    pub(crate) fn decode(dtype: Dtype, bytes: &[u8]) -> Self {
        let mut word = [0; 8];
        let size = bytes.len().min(8);
        if cfg!(target_endian = "little") {
            word[..size].copy_from_slice(&bytes[..size]);
        } else {
            word[8 - size..].copy_from_slice(&bytes[..size]);
        }
        let word = u64::from_ne_bytes(word);
        match dtype {
            Dtype::Int(_) => {
                let unused = 64 - 8 * size as u32;
                Self::Int((((word << unused) as i64) >> unused).into())
            }
            Dtype::Float(2) => Self::Float(half(word as u16)),
            Dtype::Float(4) => Self::Float(f32::from_bits(word as u32).into()),
            Dtype::Float(_) => Self::Float(f64::from_bits(word)),
            Dtype::BFloat16 => Self::Float(f32::from_bits((word as u32) << 16).into()),
            _ => Self::Int(word.into()),
        }
    }
}

/// Numbers are equal by value, whatever their type; a NaN is not comparable.
impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (*self, *other) {
            (Self::Int(one), Self::Int(other)) => Some(one.cmp(&other)),
            (one, other) => one.to_f64().partial_cmp(&other.to_f64()),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

/// The value of an IEEE 754 number of 2 bytes.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_every_kind_of_number() {
        let cases: [(Dtype, &[u8], f64); 11] = [
            (Dtype::Bool, &[1], 1.0),
            (Dtype::Int(1), &(-3i8).to_ne_bytes(), -3.0),
            (Dtype::UInt(1), &[253], 253.0),
            (Dtype::Int(2), &(-300i16).to_ne_bytes(), -300.0),
            (Dtype::Int(8), &(-3i64).to_ne_bytes(), -3.0),
            (Dtype::Float(2), &0xc100u16.to_ne_bytes(), -2.5),
            (Dtype::Float(2), &0x0001u16.to_ne_bytes(), 5.960_464_477_539_063e-8),
            (Dtype::Float(2), &0x7c00u16.to_ne_bytes(), f64::INFINITY),
            (Dtype::Float(4), &0.5f32.to_ne_bytes(), 0.5),
            (Dtype::Float(8), &0.1f64.to_ne_bytes(), 0.1),
            (Dtype::BFloat16, &0xbf80u16.to_ne_bytes(), -1.0),
        ];
        for (dtype, bytes, value) in cases {
            assert_eq!(Scalar::decode(dtype, bytes).to_f64(), value, "{dtype}");
        }
        assert!(Scalar::decode(Dtype::Float(2), &0x7e00u16.to_ne_bytes()).to_f64().is_nan());
    }

    #[test]
    fn large_integers_are_compared_exactly() {
        let large = Scalar::decode(Dtype::UInt(8), &u64::MAX.to_ne_bytes());
        assert!(large > Scalar::Int(i128::from(u64::MAX) - 1));
        assert!(large == Scalar::Int(u64::MAX.into()));
        assert!(Scalar::Int(3) == Scalar::Float(3.0) && Scalar::Int(3) < Scalar::Float(3.5));
        assert!(Scalar::Float(f64::NAN) != Scalar::Float(f64::NAN));
    }
}
