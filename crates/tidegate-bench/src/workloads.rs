//! Workloads: the keys that are accessed, and their order.
//!
//! A key is a number here. It becomes text (`user:00012345`) just before it is
//! used, outside the timed region: see `measure.rs`.

use clap::ValueEnum;

/// A number of keys and their distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// One key.
    #[value(name = "hot")]
    Hot,
    /// 10,000 keys, uniform.
    #[value(name = "10k")]
    TenThousand,
    /// A million keys, uniform.
    #[value(name = "1m-uniform")]
    MillionUniform,
    /// A million keys, Zipf with exponent 1.
    #[value(name = "1m-zipf")]
    MillionZipf,
    /// Ten million keys, uniform.
    #[value(name = "10m-uniform")]
    TenMillionUniform,
}

/// The window of every limit that is aged. Some subjects have a second, shorter window.
pub const WINDOW_NS: u64 = 60_000_000_000;

/// Coprime to every number of keys above (powers of ten), so that multiplying
/// by it scatters neighbours and still reaches every key.
const SCATTER: u64 = 7_654_321;

impl Workload {
    /// Keys the subject holds when timing starts.
    pub fn keys(self) -> u32 {
        match self {
            Workload::Hot => 1,
            Workload::TenThousand => 10_000,
            Workload::MillionUniform | Workload::MillionZipf => 1_000_000,
            Workload::TenMillionUniform => 10_000_000,
        }
    }

    /// Average accesses to each key per window. Large enough that a key holds cells of several
    /// ages, small enough that a table of this size can be aged in a minute or two.
    fn accesses_per_window(self) -> u32 {
        match self {
            Workload::Hot => u32::MAX,
            Workload::TenThousand => 200,
            Workload::MillionUniform | Workload::MillionZipf => 8,
            Workload::TenMillionUniform => 4,
        }
    }

    /// Virtual time between two decisions under a limit. On average a key gets at most half its
    /// limit, so all subjects admit everything, whatever their algorithm. Only the first few
    /// hundred keys of Zipf exceed their limit, and they do so under every algorithm.
    pub fn step_ns(self, limit: u32) -> u64 {
        let accesses = self.accesses_per_window().min(limit / 2);
        WINDOW_NS / (u64::from(self.keys()) * u64::from(accesses))
    }
}

/// Draws the accesses of a workload. Every run draws the same accesses.
pub struct Accesses {
    workload: Workload,
    random: Random,
    zipf: Option<Zipf>,
    drawn: Vec<u32>,
}

impl Accesses {
    pub fn new(workload: Workload) -> Self {
        let zipf = (workload == Workload::MillionZipf).then(|| Zipf::new(workload.keys()));
        Accesses { workload, random: Random(0x7469_6465_6761_7465), zipf, drawn: Vec::new() }
    }

    /// Draws the next `len` accesses.
    pub fn draw(&mut self, len: usize) -> &[u32] {
        let (keys, random) = (self.workload.keys(), &mut self.random);
        self.drawn.clear();
        match &self.zipf {
            Some(zipf) => {
                let draw = |_| scatter(zipf.rank(random.unit()), keys);
                self.drawn.extend((0..len).map(draw));
            }
            None => self.drawn.extend((0..len).map(|_| random.below(keys))),
        }
        &self.drawn
    }
}

fn scatter(rank: u32, keys: u32) -> u32 {
    remainder(u64::from(rank) * SCATTER, keys)
}

fn remainder(value: u64, modulus: u32) -> u32 {
    u32::try_from(value % u64::from(modulus)).expect("a remainder is below its u32 modulus")
}

/// Zipf distribution: ranks from 0 with probability proportional to 1 / (rank + 1).
struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(keys: u32) -> Self {
        let mut total = 0.0;
        let cumulative = (1..=keys)
            .map(|rank| {
                total += 1.0 / f64::from(rank);
                total
            })
            .collect();
        Zipf { cumulative }
    }

    fn rank(&self, unit: f64) -> u32 {
        let total = self.cumulative.last().copied().unwrap_or(0.0);
        let at = self.cumulative.partition_point(|&sum| sum <= unit * total);
        u32::try_from(at.min(self.cumulative.len() - 1)).expect("ranks come from a u32 range")
    }
}

/// The splitmix64 generator: small, fast, and reproducible on every machine.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniform number in `0..bound`; the bias of the modulus is below 2^-40 here.
    pub fn below(&mut self, bound: u32) -> u32 {
        remainder(self.next(), bound)
    }

    /// Returns a uniform number in [0, 1) with 53 bits, all that an `f64` represents exactly.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / 9_007_199_254_740_992.0
    }
}

/// Writes the text of key `number` into `text` and reuses its memory.
pub fn write_key(text: &mut String, number: u32) {
    let mut bytes = *b"user:00000000";
    let mut rest = number;
    for digit in bytes[5..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text.clear();
    text.push_str(std::str::from_utf8(&bytes).expect("digits are ASCII"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_text_of_fixed_length() {
        let mut text = String::new();
        for (number, expected) in
            [(0, "user:00000000"), (12_345_678, "user:12345678"), (9_999_999, "user:09999999")]
        {
            write_key(&mut text, number);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn draws_differ_and_stay_within_the_keys() {
        let mut accesses = Accesses::new(Workload::TenThousand);
        let [first, second] = [(); 2].map(|()| accesses.draw(100_000).to_vec());
        assert_ne!(first, second);
        let mut distinct = first;
        distinct.sort_unstable();
        distinct.dedup();
        // 10,000 keys, ten draws each on average: e^-10 of them, about one, is never drawn.
        assert!(distinct.len() > 9_980 && distinct.last() < Some(&10_000));
        assert_eq!(Accesses::new(Workload::Hot).draw(3), [0, 0, 0]);
    }

    #[test]
    fn keys_get_at_most_half_their_limit() {
        for (workload, limit, accesses) in [
            (Workload::Hot, 600, 300),
            (Workload::Hot, 20, 10),
            (Workload::TenThousand, 600, 200),
            (Workload::TenThousand, 100, 50),
            (Workload::TenMillionUniform, 600, 4),
        ] {
            let per_window = WINDOW_NS / workload.step_ns(limit) / u64::from(workload.keys());
            assert_eq!(per_window, accesses, "{workload:?} under {limit}");
        }
    }

    #[test]
    fn zipf_draws_first_ranks_with_expected_frequency() {
        let mut accesses = Accesses::new(Workload::MillionZipf);
        let drawn = accesses.draw(200_000);
        let first = drawn.iter().filter(|&&key| key == 0).count();
        let second = drawn.iter().filter(|&&key| key == scatter(1, 1_000_000)).count();
        // H(10^6) = 14.39: the first rank has 1/14.39 of 200,000 = 13,896, the second half of it.
        assert!((13_400..14_400).contains(&first), "first rank drawn {first} times");
        assert!((6_600..7_300).contains(&second), "second rank drawn {second} times");
    }
}
