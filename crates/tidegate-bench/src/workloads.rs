//! Which keys are asked for, in which order.
//!
//! A key is a number here and becomes text (`user:00012345`) just before it is
//! used, outside the timed region: see `measure.rs`.

use clap::ValueEnum;

/// A number of keys and a way to choose among them.
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

/// A hot key is charged this often and then replaced by the next, so that a
/// limit of 10^6 never denies: a denial is another path than an admission.
const HOT_ROUND: usize = 1 << 19;

/// Keys that take turns at being the hot one: more than any run has rounds.
const HOT_POOL: u32 = 4_096;

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

    /// Keys that may be asked for in the course of a run.
    pub fn pool(self) -> u32 {
        if self == Workload::Hot { HOT_POOL } else { self.keys() }
    }

    /// Decisions that are timed in one go.
    pub fn round(self, decisions: usize) -> usize {
        if self == Workload::Hot { decisions.min(HOT_ROUND) } else { decisions }
    }
}

/// The order of accesses of one workload, drawn once.
pub struct Accesses {
    drawn: Vec<u32>,
    shifted: Vec<u32>,
    workload: Workload,
}

impl Accesses {
    /// Draws `decisions` accesses; the same ones on every run.
    pub fn draw(workload: Workload, decisions: usize) -> Self {
        let len = workload.round(decisions);
        let mut random = Random(0x7469_6465_6761_7465);
        let keys = workload.keys();
        let drawn: Vec<u32> = match workload {
            Workload::Hot => vec![0; len],
            Workload::MillionZipf => {
                let zipf = Zipf::new(keys);
                (0..len).map(|_| scatter(zipf.rank(random.unit()), keys)).collect()
            }
            _ => (0..len).map(|_| random.below(keys)).collect(),
        };
        Accesses { shifted: Vec::with_capacity(len), drawn, workload }
    }

    /// The accesses of round `round`. Every round has the same shape on other
    /// keys, so that no key is ever charged up to its limit in a long run.
    pub fn of_round(&mut self, round: u32) -> &[u32] {
        let pool = self.workload.pool();
        // The first key was charged when the subject was filled.
        let step = if self.workload == Workload::Hot { 1 } else { scatter(1, pool) };
        let offset = remainder(u64::from(round + 1) * u64::from(step), pool);
        self.shifted.clear();
        self.shifted.extend(self.drawn.iter().map(|key| (key + offset) % pool));
        &self.shifted
    }

    /// How many distinct keys one round asks for.
    pub fn distinct(&self) -> usize {
        let mut seen = self.drawn.clone();
        seen.sort_unstable();
        seen.dedup();
        seen.len()
    }
}

fn scatter(rank: u32, keys: u32) -> u32 {
    remainder(u64::from(rank) * SCATTER, keys)
}

fn remainder(value: u64, modulus: u32) -> u32 {
    u32::try_from(value % u64::from(modulus)).expect("a remainder is below its u32 modulus")
}

/// Ranks 0.. with probability proportional to 1 / (rank + 1).
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

/// splitmix64: small, fast, and the same on every machine.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0..bound; the bias of the modulus is below 2^-40 here.
    pub fn below(&mut self, bound: u32) -> u32 {
        remainder(self.next(), bound)
    }

    /// Uniform in [0, 1).
    fn unit(&mut self) -> f64 {
        let top = u32::try_from(self.next() >> 32).expect("32 bits remain");
        f64::from(top) / (f64::from(u32::MAX) + 1.0)
    }
}

/// Writes the text of key `number` into `text`, reusing its memory.
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
    fn a_hot_round_is_one_key_and_each_round_another() {
        let mut accesses = Accesses::draw(Workload::Hot, 1_000);
        assert_eq!(accesses.distinct(), 1);
        let first = accesses.of_round(0)[0];
        let second = accesses.of_round(1)[0];
        assert!(first != 0 && second != first, "rounds used keys {first} and {second}");
    }

    #[test]
    fn uniform_reaches_nearly_every_key_and_only_those() {
        let mut accesses = Accesses::draw(Workload::TenThousand, 100_000);
        // 10,000 keys, ten draws each on average: e^-10 of them, about one, is missed.
        assert!(accesses.distinct() > 9_980);
        assert!(accesses.of_round(7).iter().all(|&key| key < 10_000));
    }

    #[test]
    fn zipf_gives_the_first_rank_its_share() {
        let accesses = Accesses::draw(Workload::MillionZipf, 200_000);
        let first = accesses.drawn.iter().filter(|&&key| key == 0).count();
        let second = accesses.drawn.iter().filter(|&&key| key == scatter(1, 1_000_000)).count();
        // H(10^6) = 14.39: the first rank has 1/14.39 of 200,000 = 13,896, the second half of it.
        assert!((13_400..14_400).contains(&first), "first rank drawn {first} times");
        assert!((6_600..7_300).contains(&second), "second rank drawn {second} times");
    }
}
