//! The algorithms that traces can be decided by, and their names on the command line.

use tidegate::Algorithm;

/// The algorithms that replace those of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithms {
    One(Algorithm),
    /// All rate algorithms, for a comparison.
    All,
}

/// The algorithms that can decide a recorded trace. `concurrency` is not among them, because a
/// trace records when requests begin, but not when they end.
pub const RATE_ALGORITHMS: [Algorithm; 5] = [
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
];

/// The error for a name that is not an algorithm with a window.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnknownAlgorithm(String);

/// Parses the name of an algorithm with a window.
pub fn rate_algorithm(name: &str) -> Result<Algorithm, String> {
    let known = Algorithm::from_name(name).filter(|one| RATE_ALGORITHMS.contains(one));
    known.ok_or_else(|| {
        let names = RATE_ALGORITHMS.map(|algorithm| algorithm.to_string());
        let all = format!("use {} or {}", names[..4].join(", "), names[4]);
        equivalent(name).unwrap_or(all)
    })
}

/// Returns the help for a name that other limiters use.
fn equivalent(name: &str) -> Option<String> {
    Algorithm::equivalent(name).map(|ours| format!("use {ours}, which takes its place here"))
}

/// Parses the name of a rate algorithm, or `all`.
pub fn algorithms(name: &str) -> Result<Algorithms, UnknownAlgorithm> {
    if name == "all" {
        return Ok(Algorithms::All);
    }
    match Algorithm::from_name(name) {
        Some(algorithm) if RATE_ALGORITHMS.contains(&algorithm) => Ok(Algorithms::One(algorithm)),
        _ => {
            let names = RATE_ALGORITHMS.map(|algorithm| algorithm.to_string());
            let all = format!("use {}, or all", names.join(", "));
            Err(UnknownAlgorithm(equivalent(name).unwrap_or(all)))
        }
    }
}
