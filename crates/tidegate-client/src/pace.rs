//! Slowing down before the limit, and sharing it with others who use the same key.
//!
//! # Why backoff is not enough
//!
//! Backoff thinks about the request that was denied. But in a crowd on one key it is the
//! request *after a success* that does the harm: whoever got through asks again at once,
//! wins again, because the others are waiting, and keeps them out. With 200 clients in a
//! loop on `100 per 1s`, full jitter uses the limit up, but half of the clients get nothing
//! for half a minute while one gets ten times its share.
//!
//! # The idea
//!
//! A client keeps a *rate*: requests per window. While a tenth of the limit or more is
//! left there is none, and requests go as they come. Then what is left is spread over the
//! time it must last, and from there on the rate is learned:
//!
//! - every success adds to it, and all the more the larger the part of the limit that was
//!   idle for a whole window (`GROWTH`): if all clients do so, they fill what is idle;
//! - every denial cuts it, a second one in a row more (`CUT`, `CUT_AGAIN`).
//!
//! Adding a number and cutting by a factor makes rates equal in time, as it does in TCP:
//! the fast lose more than the slow.
//!
//! # Whole windows
//!
//! Arrivals at random would be denied often though there is room on the average: at 105 %
//! of the limit every tenth, as in a telephone exchange. A rolling window offers better. A
//! place in it that is taken at some instant is free again exactly one window later. So
//! the pause is rounded: to `k` windows, or to a window divided by `k`. Clients then come
//! back at the instant of the window at which they got through before, find the place of
//! the one who was there in between, and a pattern without denials holds still.
//!
//! ```text
//!   window      |-------------|-------------|-------------|-------------|
//!   client A      a                           a                           a     every 2 windows
//!   client B                    b                           b                   in the same place
//!   client C          c      c      c      c      c      c      c      c        2 in a window
//! ```
//!
//! Who is denied has found no place, and looks for another at random: after the time the
//! server asked for, within the next window or the next pause, whichever is longer.
//!
//! # Bounds
//!
//! All of it is a guess about what others do, made from what a server says, and servers
//! err and lie. So nothing is paused for longer than the longest pause (30 s by default),
//! whatever was said, and numbers without sense are not learned from. A window longer than
//! the longest pause cannot be paced through; there, as soon as half of the limit is left
//! again, pausing ends.

use std::time::Duration;

use crate::backoff::part;
use crate::fields::{Standing, part_left};

/// Pacing begins when less than this part of the limit is left.
const RUNS_OUT: f64 = 0.1;
/// A part of the limit that is kept free: noise in the times of arrival is absorbed by it
/// and is not denied.
const KEPT_FREE: f64 = 0.03;
/// What is added to the rate for a whole limit that was idle for a window.
const GROWTH: f64 = 1.0;
/// What any success adds. Some limits never show anything left, such as a bucket of one
/// token: without this the rate could only fall.
const CREEP: f64 = 0.01;
/// What is left of a rate after a denial.
const CUT: f64 = 0.8;
/// What is left of it after one more in a row.
const CUT_AGAIN: f64 = 0.5;
/// The slowest rate, in requests per window. Slower would be forgotten by the server.
const SLOWEST: f64 = 1.0 / 64.0;
/// Under this part left, the fast stretch their pauses, up to twice. One who makes up much
/// of the traffic can do something about it that way.
const TIGHT: f64 = 0.05;
/// Requests per window that make a client fast.
const FAST: f64 = 8.0;
/// Pauses vary by this part, so that clients whose places collide drift apart.
const JITTER: f64 = 0.02;
/// Windows shorter than this are taken as this long.
const SHORTEST_WINDOW: Duration = Duration::from_millis(1);

/// How one client spaces its requests under one limit.
///
/// Time and chance are arguments: `now` is what has passed since any start you choose,
/// `chance` a number from 0 up to 1.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::{Pace, Standing};
///
/// let mut pace = Pace::new(Duration::from_secs(30));
/// let now = Duration::from_secs(100);
/// assert_eq!(pace.turn(now, 0.5), now, "nothing is known: go");
///
/// // Nineteen of `20 per 20s` are used up at once. The last has to last.
/// for remaining in (1..20).rev() {
///     let window = Some(Duration::from_secs(20));
///     pace.admitted(now, &Standing { limit: 20, remaining, window, reset: window });
/// }
/// assert_eq!(pace.turn(now, 0.5), now + Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    longest: Duration,
    window: Duration,
    /// Requests per window; `None` while there is no need to pause.
    rate: Option<f64>,
    /// When the last turn was given.
    last: Option<Duration>,
    /// No turn before this: the server said so.
    not_before: Duration,
    /// Denials in a row that spoke of a limit.
    denials: u32,
    /// The part left as it was last told.
    left: f64,
    recent: Recent,
}

impl Pace {
    /// A pace that never pauses for longer than `longest`.
    pub fn new(longest: Duration) -> Self {
        Pace {
            longest,
            window: Duration::ZERO,
            rate: None,
            last: None,
            not_before: Duration::ZERO,
            denials: 0,
            left: 1.0,
            recent: Recent::default(),
        }
    }

    /// Takes the next turn: when the next request may go, now or later. Those who ask
    /// together get turns one after the other.
    pub fn turn(&mut self, now: Duration, chance: f64) -> Duration {
        let spaced = match (self.rate, self.last) {
            (Some(rate), Some(last)) => {
                let varied = 1.0 - JITTER + 2.0 * JITTER * part(chance);
                last.saturating_add(self.pause(rate).mul_f64(varied))
            }
            _ => Duration::ZERO,
        };
        let turn = now.max(spaced).max(self.not_before);
        self.last = Some(turn);
        turn
    }

    /// Gives a turn back that was not used. Only the latest can be had again: the others
    /// have turns behind them.
    pub fn give_back(&mut self, turn: Duration) {
        if self.last == Some(turn) {
            self.last = self.rate.map(|rate| turn.saturating_sub(self.pause(rate)));
        }
    }

    /// A request got through.
    pub fn admitted(&mut self, now: Duration, standing: &Standing) {
        self.denials = 0;
        if standing.limit == 0 || !self.follow(standing) {
            return;
        }
        let left = part_left(standing);
        self.left = left;
        self.recent.note(now, self.window.min(self.longest), left);
        self.recent.admitted += 1.0;
        let rate = match self.rate {
            None if left >= RUNS_OUT => return,
            None => self.first_rate(standing),
            Some(_) if self.window > self.longest && left >= 0.5 => {
                self.rate = None;
                return;
            }
            Some(rate) => rate,
        };
        let limit = to_float(standing.limit);
        let idle = self.recent.lowest() - KEPT_FREE.max(1.5 / limit);
        self.rate = Some((rate + CREEP.max(GROWTH * idle)).clamp(SLOWEST, limit));
    }

    /// A request was denied, and is not to be sent again before `wait` has passed.
    pub fn denied(
        &mut self,
        now: Duration,
        wait: Option<Duration>,
        standing: Option<&Standing>,
        chance: f64,
    ) {
        let mut hold = wait.unwrap_or_default();
        if let Some(standing) = standing
            && standing.limit > 0
            && self.follow(standing)
        {
            self.denials = self.denials.saturating_add(1);
            self.left = 0.0;
            self.recent.note(now, self.window.min(self.longest), 0.0);
            let cut = if self.denials == 1 { CUT } else { CUT_AGAIN };
            let rate = (self.rate.unwrap_or(1.0) * cut).max(SLOWEST);
            self.rate = Some(rate);
            hold = hold.saturating_add(self.pause(rate).max(self.window).mul_f64(part(chance)));
            // Its place is lost: the next one is looked for, not reckoned from the last. Only
            // where turns are given to others already they stay in line.
            self.last = self.last.filter(|last| *last > now);
        }
        self.not_before = self.not_before.max(now.saturating_add(hold.min(self.longest)));
    }

    /// Whether pauses are made now.
    pub fn is_pacing(&self) -> bool {
        self.rate.is_some()
    }

    /// The rate to begin with. What is left, and one more for what has come free meanwhile,
    /// over the time until the reset; but not more than this client has had in a window:
    /// the rest is left for those who had less. In a window longer than the longest pause
    /// nobody knows what others had.
    fn first_rate(&self, standing: &Standing) -> f64 {
        let until = standing.reset.unwrap_or(self.window).max(SHORTEST_WINDOW);
        let left = to_float(standing.remaining) + 1.0;
        let spread = left * self.window.as_secs_f64() / until.as_secs_f64();
        if self.window > self.longest { spread } else { spread.min(self.recent.admitted()) }
    }

    /// The pause at a rate: whole windows, or a whole part of one.
    fn pause(&self, rate: f64) -> Duration {
        let pause = if rate < 1.0 {
            self.window.mul_f64((1.0 / rate).round())
        } else {
            let stretch = (1.0 - self.left / TIGHT).max(0.0);
            let stretch = if rate > FAST { 1.0 + stretch } else { 1.0 };
            self.window.mul_f64(stretch / rate.round())
        };
        pause.min(self.longest)
    }

    /// Takes over the window that was told. Where none is, the longest time until a reset
    /// stands in for it. Says whether one is known.
    fn follow(&mut self, standing: &Standing) -> bool {
        let window = match (standing.window, standing.reset) {
            (Some(window), _) => window,
            (None, Some(reset)) => self.window.max(reset),
            (None, None) => self.window,
        };
        if window.is_zero() {
            return false;
        }
        let window = window.clamp(SHORTEST_WINDOW, crate::fields::LONGEST);
        if let Some(rate) = self.rate
            && window != self.window
        {
            // The same in a second, whatever the window.
            let scaled = rate * window.as_secs_f64() / self.window.as_secs_f64();
            self.rate = Some(scaled.max(SLOWEST));
        }
        self.window = window;
        true
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates need no 53 bits")]
fn to_float(number: u64) -> f64 {
    number as f64
}

/// What was seen in this window and the one before.
#[derive(Clone, Copy, Debug)]
struct Recent {
    since: Duration,
    /// The least part left. What was idle for an instant is not idle: only what nobody
    /// took for a whole window may be taken.
    low: f64,
    low_before: f64,
    /// Requests that got through.
    admitted: f64,
    admitted_before: f64,
}

impl Default for Recent {
    fn default() -> Self {
        Recent {
            since: Duration::ZERO,
            low: 1.0,
            low_before: 1.0,
            admitted: 0.0,
            admitted_before: 0.0,
        }
    }
}

impl Recent {
    fn note(&mut self, now: Duration, window: Duration, left: f64) {
        let passed = now.saturating_sub(self.since);
        if passed >= window {
            let fresh = Recent { since: now, ..Recent::default() };
            let is_next = passed < window.saturating_mul(2);
            let (low_before, admitted_before) =
                if is_next { (self.low, self.admitted) } else { (1.0, 0.0) };
            *self = Recent { low_before, admitted_before, ..fresh };
        }
        self.low = self.low.min(left);
    }

    fn lowest(&self) -> f64 {
        self.low.min(self.low_before)
    }

    fn admitted(&self) -> f64 {
        self.admitted.max(self.admitted_before)
    }
}
