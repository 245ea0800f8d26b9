//! Tests with a manual clock: an hour of a limiter without waiting.
//!
//! ```text
//! $ cargo test -p tidegate-examples --bin manual_clock
//! ```

use tidegate::{CheckError, Clock, Limit, Limiter, OutOfMemory};

static LOGINS: Limit = Limit::per_hour(3);

/// Login attempts, limited to three per hour and user.
struct Logins {
    limiter: Limiter,
}

impl Logins {
    fn new(clock: Clock) -> Result<Self, OutOfMemory> {
        Ok(Logins { limiter: Limiter::builder().clock(clock).build()? })
    }

    fn may_try(&self, user: &str) -> Result<bool, CheckError> {
        Ok(self.limiter.check(user, &LOGINS, 1)?.allowed)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let logins = Logins::new(Clock::coarse())?;
    println!("ann may try: {}", logins.may_try("ann")?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate::{ManualClock, Timestamp};

    use super::*;

    #[test]
    fn admits_three_attempts_per_hour() {
        let clock = ManualClock::new(Timestamp::EPOCH);
        let logins = Logins::new(clock.clock()).expect("memory");
        let tries = |user| (0..4).filter(|_| logins.may_try(user).expect("a rate limit")).count();
        assert_eq!(tries("ann"), 3);
        clock.advance(Duration::from_secs(30 * 60));
        assert_eq!(tries("ann"), 0, "half an hour later");
        assert_eq!(tries("ben"), 3, "another user");
        clock.advance(Duration::from_secs(31 * 60));
        assert_eq!(tries("ann"), 3, "an hour later");
    }
}
