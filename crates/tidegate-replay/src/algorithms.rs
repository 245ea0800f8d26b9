//! The algorithms that traces can be decided by, and their names on the command line.

use tidegate::Algorithm;

/// Which algorithms replace the limits' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithms {
    One(Algorithm),
    /// Every algorithm that limits a rate, compared.
    All,
}

/// The algorithms a recorded trace can be decided by. `concurrency` is not one:
/// a trace says when requests begin, not when they end.
pub const RATE_ALGORITHMS: [Algorithm; 5] = [
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
];

/// A name that is no algorithm of rates.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("use {}, or all", RATE_ALGORITHMS.map(|algorithm| algorithm.to_string()).join(", "))]
pub struct UnknownAlgorithm;

/// An algorithm of rates.
pub fn rate_algorithm(name: &str) -> Result<Algorithm, String> {
    let known = Algorithm::from_name(name).filter(|one| RATE_ALGORITHMS.contains(one));
    known.ok_or_else(|| {
        let names = RATE_ALGORITHMS.map(|algorithm| algorithm.to_string());
        format!("use {} or {}", names[..4].join(", "), names[4])
    })
}

/// One algorithm of rates, or `all`.
pub fn algorithms(name: &str) -> Result<Algorithms, UnknownAlgorithm> {
    if name == "all" {
        return Ok(Algorithms::All);
    }
    match Algorithm::from_name(name) {
        Some(algorithm) if RATE_ALGORITHMS.contains(&algorithm) => Ok(Algorithms::One(algorithm)),
        _ => Err(UnknownAlgorithm),
    }
}
