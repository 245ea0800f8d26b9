//! Counters that many threads add to.
//!
//! With one atomic per counter, all cores of a busy machine contend for its cache line. A set of
//! counters therefore has a few stripes, each on cache lines that no other stripe uses. A thread
//! always adds to the same stripe; reading adds the stripes up.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Stripes per set. More would only help where more threads than this add to one set in the
/// same nanosecond.
const STRIPES: usize = 8;

/// The stripe of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stripe(usize);

/// The stripe of this thread. Threads take stripes in turn.
#[inline(always)]
pub(super) fn stripe() -> Stripe {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    const UNSET: usize = usize::MAX;
    thread_local!(static STRIPE: Cell<usize> = const { Cell::new(UNSET) });
    STRIPE.with(|stripe| {
        if stripe.get() == UNSET {
            stripe.set(NEXT.fetch_add(1, Relaxed) % STRIPES);
        }
        Stripe(stripe.get())
    })
}

/// A set of `N` counters. Public for `tidegate-server`, and not part of the stable API.
#[derive(Debug)]
pub struct Counters<const N: usize>([Padded<N>; STRIPES]);

/// Two cache lines or more: many machines fetch the next line along with the first.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Counters([const { Padded([const { AtomicU64::new(0) }; N]) }; STRIPES])
    }
}

impl<const N: usize> Counters<N> {
    /// Adds to the counter with this index.
    ///
    /// # Panics
    /// When `index` is not below `N`.
    #[inline]
    pub fn add(&self, index: usize, count: u64) {
        self.add_in(stripe(), index, count);
    }

    /// Adds in the stripe of the calling thread, for callers that add to several sets.
    #[inline(always)]
    pub(super) fn add_in(&self, Stripe(stripe): Stripe, index: usize, count: u64) {
        self.0[stripe % STRIPES].0[index].fetch_add(count, Relaxed);
    }

    /// The values of all counters. Like the counters themselves, a sum wraps around.
    pub fn sums(&self) -> [u64; N] {
        let mut sums = [0_u64; N];
        for Padded(stripe) in &self.0 {
            for (sum, counter) in sums.iter_mut().zip(stripe) {
                *sum = sum.wrapping_add(counter.load(Relaxed));
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_cover_all_stripes() {
        let counters = Counters::<2>::default();
        let threads = 2 * STRIPES as u64 + 1;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| counters.add(1, 3));
            }
        });
        assert_eq!(counters.sums(), [0, 3 * threads]);
    }
}
