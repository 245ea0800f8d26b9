//! Slowing down before a limit is reached, and sharing it with other clients of the same key.
//!
//! # Why backoff is not enough
//!
//! Backoff delays the request that was denied. With many clients on one key, the harmful
//! request is the one *after a success*: the admitted client sends again immediately, is
//! admitted again because the others are waiting, and keeps them out. With 200 clients in a
//! loop on `100 per 1s`, full jitter uses the whole limit, but half of the clients get nothing
//! for half a minute while one gets ten times its share.
//!
//! # The idea
//!
//! A client keeps a *rate*: requests per window. While a tenth of the limit or more is left, the
//! rate is unset and requests are sent without delay. After that the remaining units are spread
//! over the time until the reset, and the rate is learned:
//!
//! - every success raises it, in proportion to the part of the limit that was idle for a whole
//!   window (`GROWTH`), so that all clients together use the idle part;
//! - every denial cuts it, a second one in a row further (`CUT`, `CUT_AGAIN`).
//!
//! Additive increase and multiplicative decrease make the rates of all clients converge, as in
//! TCP: fast clients lose more than slow ones.
//!
//! # Whole windows
//!
//! Requests at random times are often denied although the average is below the limit: at 105 %
//! of the limit one in ten, as in a telephone exchange. A rolling window allows better. A unit
//! that is taken at some instant is available again exactly one window later. So the pause is
//! rounded to `k` windows, or to a window divided by `k`. Clients then return at the same
//! instant of the window at which they were admitted before, reuse the same unit in turns, and
//! a pattern without denials is stable.
//!
//! ```text
//!   window      |-------------|-------------|-------------|-------------|
//!   client A      a                           a                           a     every 2 windows
//!   client B                    b                           b                   reuses that unit
//!   client C          c      c      c      c      c      c      c      c        2 per window
//! ```
//!
//! A denied client tries another instant, at random: after the wait that the server requests,
//! within the next window or the next pause, whichever is longer.
//!
//! # Bounds
//!
//! All of this estimates what other clients do from what a server reports, and reports can be
//! wrong. So no pause exceeds the longest pause (30 s by default), and nonsensical numbers are
//! ignored. A window longer than the longest pause cannot be covered by pauses; in that case
//! pacing ends as soon as half of the limit is left again.

use std::time::Duration;

use crate::backoff::clamped_fraction;
use crate::fields::{Usage, fraction_left};

/// Pacing begins when less than this part of the limit is left.
const RUNS_OUT: f64 = 0.1;
/// The part of the limit that is left unused. It absorbs variation in arrival times, which
/// would otherwise be denied.
const KEPT_FREE: f64 = 0.03;
/// Added to the rate if the whole limit was idle for a window; proportionally less otherwise.
const GROWTH: f64 = 1.0;
/// Added to the rate by any success. Some limits never report units left, such as a bucket of
/// one token: without this the rate could only fall.
const CREEP: f64 = 0.01;
/// The factor on the rate after a denial.
const CUT: f64 = 0.8;
/// The factor on the rate after each further denial in a row.
const CUT_AGAIN: f64 = 0.5;
/// The slowest rate, in requests per window.
const SLOWEST: f64 = 1.0 / 64.0;
/// Below this part left, fast clients stretch their pauses, up to twice, because they cause
/// much of the traffic.
const TIGHT: f64 = 0.05;
/// The rate, in requests per window, above which a client is fast.
const FAST: f64 = 8.0;
/// Pauses vary by this part, so that clients that collide drift apart.
const JITTER: f64 = 0.02;
/// The shortest window. Shorter ones are read as this one.
const SHORTEST_WINDOW: Duration = Duration::from_millis(1);

/// Spaces the requests of one client under one limit.
///
/// Time and randomness are arguments: `now` is the time since any fixed start, `chance` a
/// random number from 0 up to 1.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::{Pace, Usage};
///
/// let mut pace = Pace::new(Duration::from_secs(30));
/// let now = Duration::from_secs(100);
/// assert_eq!(pace.turn(now, 0.5), now, "without history there is no pause");
///
/// // Nineteen of `20 per 20s` are used at once. The last one is delayed.
/// for remaining in (1..20).rev() {
///     let window = Some(Duration::from_secs(20));
///     pace.admitted(now, &Usage { limit: 20, remaining, window, reset: window });
/// }
/// assert_eq!(pace.turn(now, 0.5), now + Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    longest: Duration,
    window: Duration,
    /// Requests per window; `None` while requests are sent without delay.
    rate: Option<f64>,
    /// The time of the last turn.
    last: Option<Duration>,
    /// The earliest next turn, as the server requested.
    not_before: Duration,
    /// Denials in a row that reported a limit.
    denials: u32,
    /// The part of the limit left, as last reported.
    left: f64,
    recent: Recent,
}

impl Pace {
    /// Creates a pace whose pauses are at most `longest`.
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

    /// Takes the next turn: the time at which the next request may be sent, now or later.
    /// Concurrent callers get turns one after the other.
    pub fn turn(&mut self, now: Duration, chance: f64) -> Duration {
        let spaced = match (self.rate, self.last) {
            (Some(rate), Some(last)) => {
                let varied = 1.0 - JITTER + 2.0 * JITTER * clamped_fraction(chance);
                last.saturating_add(self.pause(rate).mul_f64(varied))
            }
            _ => Duration::ZERO,
        };
        let turn = now.max(spaced).max(self.not_before);
        self.last = Some(turn);
        turn
    }

    /// Gives back an unused turn. Only the latest turn can be reused, because later turns depend
    /// on the earlier ones.
    pub fn give_back(&mut self, turn: Duration) {
        if self.last == Some(turn) {
            self.last = self.rate.map(|rate| turn.saturating_sub(self.pause(rate)));
        }
    }

    /// Records that a request was admitted.
    pub fn admitted(&mut self, now: Duration, usage: &Usage) {
        self.denials = 0;
        if usage.limit == 0 || !self.follow(usage) {
            return;
        }
        let left = fraction_left(usage);
        self.left = left;
        self.recent.note(now, self.window.min(self.longest), left);
        self.recent.admitted += 1.0;
        let rate = match self.rate {
            None if left >= RUNS_OUT => return,
            None => self.first_rate(usage),
            Some(_) if self.window > self.longest && left >= 0.5 => {
                self.rate = None;
                return;
            }
            Some(rate) => rate,
        };
        let limit = to_float(usage.limit);
        let idle = self.recent.lowest() - KEPT_FREE.max(1.5 / limit);
        self.rate = Some((rate + CREEP.max(GROWTH * idle)).clamp(SLOWEST, limit));
    }

    /// Records that a request was denied and must not be sent again before `wait` has passed.
    pub fn denied(
        &mut self,
        now: Duration,
        wait: Option<Duration>,
        usage: Option<&Usage>,
        chance: f64,
    ) {
        let mut hold = wait.unwrap_or_default();
        if let Some(usage) = usage
            && usage.limit > 0
            && self.follow(usage)
        {
            self.denials = self.denials.saturating_add(1);
            self.left = 0.0;
            self.recent.note(now, self.window.min(self.longest), 0.0);
            let cut = if self.denials == 1 { CUT } else { CUT_AGAIN };
            let rate = (self.rate.unwrap_or(1.0) * cut).max(SLOWEST);
            self.rate = Some(rate);
            hold = hold.saturating_add(
                self.pause(rate).max(self.window).mul_f64(clamped_fraction(chance)),
            );
            // The next turn is chosen at random, not relative to the last one. Turns that other
            // callers hold already are kept.
            self.last = self.last.filter(|last| *last > now);
        }
        self.not_before = self.not_before.max(now.saturating_add(hold.min(self.longest)));
    }

    /// Returns whether requests are currently paused.
    pub fn is_pacing(&self) -> bool {
        self.rate.is_some()
    }

    /// Returns the initial rate: the remaining units, plus one for those that expired meanwhile,
    /// over the time until the reset. It is at most what this client was admitted in a window,
    /// so that clients with less get the rest. For windows longer than the longest pause that
    /// number is unknown.
    fn first_rate(&self, usage: &Usage) -> f64 {
        let until = usage.reset.unwrap_or(self.window).max(SHORTEST_WINDOW);
        let left = to_float(usage.remaining) + 1.0;
        let spread = left * self.window.as_secs_f64() / until.as_secs_f64();
        if self.window > self.longest { spread } else { spread.min(self.recent.admitted()) }
    }

    /// Returns the pause at a rate: `k` windows, or a window divided by `k`.
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

    /// Adopts the reported window, or else the longest time until a reset. Returns whether a
    /// window is known.
    fn follow(&mut self, usage: &Usage) -> bool {
        let window = match (usage.window, usage.reset) {
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
            // The rate per second stays the same.
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

/// Observations in the current window and the previous one.
#[derive(Clone, Copy, Debug)]
struct Recent {
    since: Duration,
    /// The smallest part left. Only units that no client used for a whole window are idle.
    low: f64,
    low_before: f64,
    /// Requests that were admitted.
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
