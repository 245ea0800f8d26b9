//! Bytes in, bytes out, on a clock of our own.
//!
//! - `rows.rs`: every command, error and protocol case;
//! - `cells.rs`: `CL.THROTTLE` and `THROTTLE` against published vectors and a naive limiter;
//! - `decoder.rs`: random and mutated bytes against a naive parser, however they are split.
//!
//! What needs a socket, a real client or a real Redis beside it is in `tests/it/resp`.

mod decoder;
mod replies;
mod throttle;

use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::config::Config;
use tidegate::unstable::gate::Gate;
use tidegate::unstable::stats::Stats;
use tidegate::{Limiter, ManualClock, Timestamp};

use super::RespFront;
use super::buffers::{Desk, Papers};
use super::pipeline::{self, Turn};
use super::session::Session;
use crate::access::{Access, Tokens};
use crate::admin::Facts;

const POLICIES: &str = r#"
policies:
  - name: login
    key: "{client_ip}"
    limits: ["2 per 1m sliding-log"]
  - name: api
    key: "{client_ip}"
    limits: ["10 per 1s fixed-window", "3 per 1h sliding-log"]
    cost: 2
  - name: watched
    key: "{client_ip}"
    limits: ["1 per 1h sliding-log"]
    mode: observe
  - name: nothing
    key: "{client_ip}"
    limits: ["1 per 1h"]
    mode: "off"
  - name: jobs
    key: "{client_ip}"
    limits: ["2 concurrent"]
  - name: keyed
    key: "{header:x-api-key | client_ip}"
    limits: ["2 per 1m sliding-log"]
"#;

/// A front in memory.
struct World {
    front: RespFront,
    clock: ManualClock,
}

impl World {
    fn new(access: Access) -> Self {
        // On a whole hour, so that windows begin when the tests do.
        let clock = ManualClock::new(Timestamp::from_micros(1_000_000 * 3_600 * 480_000));
        let limiter = Limiter::builder().clock(clock.clock()).max_keys(10_000).build();
        let config = Config::parse(POLICIES, "tidegate.yaml").expect("a config");
        let stats = Arc::new(Stats::new(clock.clock()));
        let gate = Gate::new(limiter.expect("memory"), config.policies, stats);
        let front = RespFront::new(Arc::new(gate), Arc::new(Facts::new(10_000)), access);
        World { front, clock }
    }

    fn open() -> Self {
        World::new(Access::Local)
    }

    fn with_secrets() -> Self {
        World::new(Access::Secrets(Tokens::new(["s3cret".into(), "other".into()])))
    }

    fn connect(&self) -> Caller<'_> {
        Caller { world: self, session: Session::new(7, &self.front), papers: Papers::default() }
    }

    fn advance(&self, us: u64) {
        self.clock.advance(Duration::from_micros(us));
    }
}

/// A connection without a socket.
struct Caller<'w> {
    world: &'w World,
    session: Session,
    papers: Papers,
}

impl Caller<'_> {
    /// What comes back for these bytes, and whether the connection ends.
    fn send(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut replies = Vec::new();
        let mut rest = bytes;
        loop {
            let mut desk = Desk::with(&self.papers);
            let room = desk.input.len() - desk.filled;
            let (now, later) = rest.split_at(rest.len().min(room));
            desk.input[desk.filled..][..now.len()].copy_from_slice(now);
            desk.filled += now.len();
            rest = later;
            let turn = pipeline::answer(&self.world.front, &mut self.session, &mut desk);
            replies.extend_from_slice(&desk.output);
            desk.output.clear();
            self.papers = desk.leave(0);
            match turn {
                Turn::Ends => return (replies, true),
                Turn::Answered if rest.is_empty() => return (replies, false),
                Turn::Answered | Turn::Pauses => {}
            }
        }
    }

    /// The same as text, for rows.
    fn say(&mut self, text: &str) -> String {
        let (replies, ends) = self.send(text.as_bytes());
        let replies = String::from_utf8(replies).expect("UTF-8");
        if ends { replies + "(closed)" } else { replies }
    }
}

/// A command as clients send it.
fn command(words: &[&str]) -> String {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text += &format!("${}\r\n{word}\r\n", word.len());
    }
    text
}
