//! Turns of every app, and what each layer added in its round.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::apps::{App, Subject, request};
use crate::cli::LayerArgs;
use crate::inprocess::load;
use crate::measure::Queue;

/// Requests of a block: made before it is timed, small enough to stay in the cache.
const BLOCK: u32 = 256;
/// Blocks of a turn.
const BLOCKS: u32 = 16;

/// How many clients there are: one that is always in the cache, and many.
pub const CLIENTS: [u32; 2] = [1, 10_000];

/// What every subject took, round by round.
pub struct Results {
    pub rows: Vec<Row>,
    pub rounds: usize,
    pub load_before: String,
    pub load_after: String,
}

/// One subject with so many clients.
pub struct Row {
    pub subject: Subject,
    pub clients: u32,
    /// Nanoseconds per request, one value a round.
    pub ns: Vec<f64>,
}

pub fn run(args: &LayerArgs) -> Results {
    let rounds = if args.quick { 31 } else { 201 };
    let load_before = load();
    let rows = CLIENTS.into_iter().flat_map(|clients| measure(clients, rounds)).collect();
    Results { rows, rounds, load_before, load_after: load() }
}

fn measure(clients: u32, rounds: usize) -> Vec<Row> {
    let mut apps: Vec<(Subject, App)> =
        Subject::ALL.into_iter().map(|subject| (subject, App::new(subject))).collect();
    for (subject, app) in &mut apps {
        prove(*subject, app, clients);
    }
    let mut rows: Vec<Row> = Subject::ALL
        .into_iter()
        .map(|subject| Row { subject, clients, ns: Vec::with_capacity(rounds) })
        .collect();
    let mut queue = Queue::new();
    for round in 0..rounds {
        // Each begins one round in as many, so that none has a better neighbour.
        for turn in 0..apps.len() {
            let index = (round + turn) % apps.len();
            let took = take_turn(&mut apps[index].1, clients, round, &mut queue);
            rows[index].ns.push(took.as_nanos() as f64 / f64::from(BLOCK * BLOCKS));
        }
    }
    for (subject, app) in &mut apps {
        // Still, after all those.
        prove(*subject, app, clients);
    }
    rows
}

/// That it lets everybody in, says what it is said to say, and counts every client apart.
fn prove(subject: Subject, app: &mut App, clients: u32) {
    for client in 0..clients {
        let response = app.call(request(client));
        assert_eq!(response.status(), 200, "{} denies", subject.name());
        let mut names: Vec<&str> = response.headers().keys().map(|name| name.as_str()).collect();
        names.retain(|name| name.contains("ratelimit"));
        names.sort_unstable();
        assert_eq!(names, subject.fields(), "the fields of {}", subject.name());
    }
    if let Some(counted) = app.counted() {
        assert_eq!(counted, u64::from(clients), "the clients of {}", subject.name());
    }
}

fn take_turn(app: &mut App, clients: u32, round: usize, queue: &mut Queue) -> Duration {
    let mut took = Duration::ZERO;
    let mut next = u32::try_from(round).unwrap_or_default().wrapping_mul(7919);
    for _ in 0..BLOCKS {
        let requests: Vec<_> = (0..BLOCK)
            .map(|_| {
                // Steps of a prime: all clients in turn, neighbours far apart.
                next = next.wrapping_add(6_151) % clients;
                request(next)
            })
            .collect();
        queue.catch_up();
        let begun = Instant::now();
        for request in requests {
            black_box(app.call(request));
        }
        took += queue.without_waiting(begun.elapsed());
    }
    took
}
