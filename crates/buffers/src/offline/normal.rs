//! Mean and spread of the elements of rows, and rows made to have mean 0 and spread 1.

use echoic_replay::Dtype;

use crate::error::Error;

/// A spread below this is rounding: such an element is only shifted.
const LEAST_STD: f64 = 1e-8;

/// The type of the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    /// Of 4 bytes.
    Single,
    /// Of 8 bytes.
    Double,
}

impl Float {
    /// As which elements of a dtype are computed with, if they are.
    pub fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::Float(4) => Some(Self::Single),
            Dtype::Float(8) => Some(Self::Double),
            _ => None,
        }
    }

    /// Its size.
    pub fn bytes(self) -> usize {
        match self {
            Self::Single => 4,
            Self::Double => 8,
        }
    }

    /// The element at this place of an array.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[inline]
    pub fn at(self, bytes: &[u8], index: usize) -> f64 {
        match self {
            Self::Single => f64::from(f32::from_ne_bytes(bytes.as_chunks().0[index])),
            Self::Double => f64::from_ne_bytes(bytes.as_chunks().0[index]),
        }
    }
}

/// See the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub struct Normal {
    float: Float,
    mean: Vec<f64>,
    std: Vec<f64>,
    /// One by the spread, or 1 where there is none.
    scale: Vec<f64>,
}

impl Normal {
    /// Of these rows, each of this many elements.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] when an element's mean or spread is not finite.
    pub fn of<'a>(
        column: &str,
        float: Float,
        elements: usize,
        rows: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Self, Error> {
        // Sums of differences to the first row: in one pass, and as exact as two where the first row is
        // not thousands of spreads away.
        let (mut origin, mut count) = (Vec::new(), 0usize);
        let (mut sums, mut squares) = (vec![0.0; elements], vec![0.0; elements]);
        for row in rows {
            if count == 0 {
                origin = (0..elements).map(|index| float.at(row, index)).collect();
            }
            let sums = origin.iter().zip(sums.iter_mut().zip(&mut squares));
            match float {
                Float::Single => row.as_chunks().0.iter().zip(sums).for_each(|(value, sum)| {
                    add(f64::from(f32::from_ne_bytes(*value)), sum);
                }),
                Float::Double => row.as_chunks().0.iter().zip(sums).for_each(|(value, sum)| {
                    add(f64::from_ne_bytes(*value), sum);
                }),
            }
            count += 1;
        }
        origin.resize(elements, 0.0);
        let number = count.max(1) as f64;
        let mean: Vec<f64> = origin.iter().zip(&sums).map(|(at, sum)| at + sum / number).collect();
        let std = sums.iter().zip(&squares);
        let std: Vec<f64> = std
            .map(|(sum, square)| (square - sum * sum / number).max(0.0) / number)
            .map(f64::sqrt)
            .collect();
        for (element, (mean, std)) in mean.iter().zip(&std).enumerate() {
            if !(mean.is_finite() && std.is_finite()) {
                let none = "has no finite mean and spread, so it can't be normalised";
                return Err(Error::Argument(format!("`{column}`: element {element} {none}")));
            }
        }
        let scale = std.iter().map(|std| if *std < LEAST_STD { 1.0 } else { 1.0 / std }).collect();
        Ok(Self { float, mean, std, scale })
    }

    /// The mean of each element.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// The standard deviation of each element, of the rows themselves.
    pub fn std(&self) -> &[f64] {
        &self.std
    }

    /// What each element is multiplied by once its mean is taken off.
    pub fn scale(&self) -> &[f64] {
        &self.scale
    }

    /// Takes off the mean and divides by the spread, in place.
    pub fn apply(&self, row: &mut [u8]) {
        let terms = self.mean.iter().zip(&self.scale);
        match self.float {
            Float::Single => {
                for (value, (mean, scale)) in row.as_chunks_mut().0.iter_mut().zip(terms) {
                    let number = f64::from(f32::from_ne_bytes(*value));
                    *value = (((number - mean) * scale) as f32).to_ne_bytes();
                }
            }
            Float::Double => {
                for (value, (mean, scale)) in row.as_chunks_mut().0.iter_mut().zip(terms) {
                    *value = ((f64::from_ne_bytes(*value) - mean) * scale).to_ne_bytes();
                }
            }
        }
    }
}

/// Adds a value to the sums of its element.
#[inline]
fn add(value: f64, (origin, (sum, square)): (&f64, (&mut f64, &mut f64))) {
    let difference = value - origin;
    *sum += difference;
    *square += difference * difference;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[[f32; 2]]) -> Vec<u8> {
        values.iter().flatten().flat_map(|value| value.to_ne_bytes()).collect()
    }

    #[test]
    fn a_row_is_shifted_and_scaled_and_a_constant_only_shifted() {
        let mut bytes = rows(&[[1.0, 5.0], [3.0, 5.0]]);
        let normal = Normal::of("obs", Float::Single, 2, bytes.chunks_exact(8)).unwrap();
        assert_eq!((normal.mean(), normal.std()), (&[2.0, 5.0][..], &[1.0, 0.0][..]));
        bytes.chunks_exact_mut(8).for_each(|row| normal.apply(row));
        assert_eq!(bytes, rows(&[[-1.0, 0.0], [1.0, 0.0]]));
    }

    #[test]
    fn far_from_zero_the_spread_is_still_right() {
        let values: Vec<[f32; 2]> = (0..1000).map(|n| [1e6 + (n % 2) as f32, n as f32]).collect();
        let bytes = rows(&values);
        let normal = Normal::of("obs", Float::Single, 2, bytes.chunks_exact(8)).unwrap();
        assert!((normal.std()[0] - 0.5).abs() < 1e-12, "{:?}", normal.std());
        assert!((normal.std()[1] - 288.674_990_257_209_5).abs() < 1e-9, "{:?}", normal.std());
    }

    #[test]
    fn an_element_that_is_not_a_number_is_named() {
        let bytes = rows(&[[0.0, 1.0], [0.0, f32::NAN]]);
        let error = Normal::of("obs", Float::Single, 2, bytes.chunks_exact(8)).unwrap_err();
        let none = "has no finite mean and spread, so it can't be normalised";
        assert_eq!(error.to_string(), format!("`obs`: element 1 {none}"));
    }

    #[test]
    fn doubles_are_normalised_as_doubles() {
        let mut bytes: Vec<u8> = [1.0f64, 2.0, 3.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
        let normal = Normal::of("obs", Float::Double, 1, bytes.chunks_exact(8)).unwrap();
        bytes.chunks_exact_mut(8).for_each(|row| normal.apply(row));
        let expected = -normal.scale()[0];
        assert_eq!(Float::Double.at(&bytes, 0), expected);
        assert_eq!(Float::Double.at(&bytes, 1), 0.0);
    }
}
