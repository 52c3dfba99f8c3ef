//! Ordinary loops, compiled once for each set of vector instructions, and memory asked for before it is needed.
//!
//! The compiler turns the loops of this crate into vector instructions by itself, but may use only those
//! that every processor has unless it is told more. What runs here is compiled for AVX2 too (and the
//! like elsewhere), and the processor decides at run time.

use pulp::Arch;

/// The bytes that the processor fetches at once.
const LINE: usize = 64;

/// Runs `work` with the widest vector instructions that there are.
///
/// Only what is inlined gains from it, so `work` and everything that it calls in a loop must be
/// `#[inline(always)]`. Adapters of iterators are not: loops that matter go over indices of slices which
/// were cut to one length before, and write to slices that are arguments of a function, which tells the
/// compiler that nothing else lies there.
///
/// ```
/// use echoic_primitives::simd::vectorized;
///
/// let mut numbers = [1.0f32, 2.0, 3.0];
/// vectorized(
///     #[inline(always)]
///     || numbers.iter_mut().for_each(|x| *x *= 2.0),
/// );
/// assert_eq!(numbers, [2.0, 4.0, 6.0]);
/// ```
#[inline]
pub fn vectorized<T>(work: impl FnOnce() -> T) -> T {
    Arch::new().dispatch(work)
}

/// Has the processor fetch a slice.
#[inline]
pub(crate) fn prefetch<T>(slice: &[T]) {
    slice.iter().step_by(LINE / size_of::<T>()).for_each(echoic_memory::prefetch);
}
