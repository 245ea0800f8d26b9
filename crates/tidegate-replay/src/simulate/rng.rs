//! Random numbers that are the same on every platform and in every version.
//!
//! A simulation must be repeatable on another machine and with another version. So the numbers come
//! from splitmix64, which is a dozen integer operations. Distributions are computed with `libm`,
//! whose logarithms and cosines are identical to the last bit on every platform, unlike those of
//! the system library.

/// A random number generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// Returns another generator, which is practically independent.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 up to but not including 1.
    pub fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let drawn = (self.next() >> 11) as f64;
        drawn / 9_007_199_254_740_992.0
    }

    /// Returns a uniform number below a bound. For bounds below 2^32 the bias is below 2^-32.
    pub fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// Returns an exponentially distributed wait, as between independent events.
    pub fn wait(&mut self, mean: f64) -> f64 {
        -libm::log(1.0 - self.unit()) * mean
    }
}

/// Rounds microseconds down to an integer between 0 and 2^53, which is 285 years.
pub fn whole(us: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the bounds are those of exact whole numbers"
    )]
    let whole = us.clamp(0.0, 9_007_199_254_740_992.0) as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_numbers() {
        let mut rng = Rng::new(1);
        assert_eq!(rng.next(), 0x910a_2dec_8902_5cc1, "splitmix64 of seed 1");
        let drawn: Vec<u64> = (0..4).map(|_| whole(rng.wait(1e6))).collect();
        assert_eq!(drawn, DRAWN);
    }

    /// The expected numbers. They must never change.
    const DRAWN: [u64; 4] = [1_369_562, 3_540_554, 587_633, 587_463];

    #[test]
    fn draws_have_expected_distribution() {
        let mut rng = Rng::new(7);
        let count = 100_000;
        let mean = (0..count).map(|_| whole(rng.wait(1_000.0))).sum::<u64>() / count;
        assert!((990..1_010).contains(&mean), "{mean}");
        let mut seen = [0_u32; 10];
        (0..count).for_each(|_| seen[usize::try_from(rng.below(10)).expect("small")] += 1);
        assert!(seen.iter().all(|&times| (9_700..10_300).contains(&times)), "{seen:?}");
        assert_eq!([whole(-1.0), whole(f64::NAN), whole(2.9)], [0, 0, 2]);
    }
}
