//! A worker that calls an API at most 20 times per second and waits between calls.
//!
//! ```text
//! $ cargo run -p tidegate-examples --bin worker
//! ```

use std::error::Error;
use std::time::Duration;

use tidegate::{Check, Limit, Limiter};

static PER_SECOND: Limit = Limit::per_second(20);

async fn call(limiter: &Limiter, job: u32) -> Result<(), Box<dyn Error>> {
    let checks = [Check::new("api", &PER_SECOND, 1)];
    limiter.wait(&checks, Duration::from_secs(10)).await?.or_deny()?;
    println!("job {job}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new();
    for job in 0..60 {
        call(&limiter, job).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use tidegate::{ManualClock, Timestamp};

    use super::*;

    #[test]
    fn waits_when_the_limit_is_used_up() {
        let clock = ManualClock::new(Timestamp::EPOCH);
        let limiter = Limiter::builder().clock(clock.clock()).build().expect("memory");
        let mut context = Context::from_waker(Waker::noop());
        for job in 0..20 {
            assert!(pin!(call(&limiter, job)).poll(&mut context).is_ready(), "{job}");
        }
        let mut waiting = pin!(call(&limiter, 20));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        clock.advance(Duration::from_secs(2));
        assert!(waiting.poll(&mut context).is_ready());
    }
}
