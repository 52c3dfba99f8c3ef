//! Asking the processor for memory before it is needed.

/// The bytes that it fetches at once.
const LINE: usize = 64;

/// Has the processor fetch a slice.
#[inline]
pub fn prefetch<T>(slice: &[T]) {
    slice.iter().step_by(LINE / size_of::<T>()).for_each(echoic_memory::prefetch);
}
