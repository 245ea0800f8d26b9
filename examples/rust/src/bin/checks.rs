//! Simple checks: at most five messages per minute and user.
//!
//! ```text
//! $ cargo run -p tidegate-examples --bin checks
//! ```

use std::error::Error;

use tidegate::{Limit, Limiter};

static PER_USER: Limit = Limit::per_minute(5);

fn send(limiter: &Limiter, user: &str) -> Result<(), Box<dyn Error>> {
    limiter.check(user, &PER_USER, 1)?.or_deny()?;
    println!("sent a message of {user}");
    Ok(())
}

fn main() {
    let limiter = Limiter::new();
    for user in ["ann", "ann", "ann", "ann", "ann", "ann", "ben"] {
        if let Err(error) = send(&limiter, user) {
            println!("{user}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Denied;

    use super::*;

    #[test]
    fn denies_the_sixth_message() {
        let limiter = Limiter::new();
        for _ in 0..5 {
            send(&limiter, "ann").expect("within the limit");
        }
        let error = send(&limiter, "ann").expect_err("the sixth");
        let denied: &Denied = error.downcast_ref().expect("a denial");
        assert!(denied.retry_after().as_secs().is_some_and(|wait| wait <= 64), "{error}");
        send(&limiter, "ben").expect("another user");
    }
}
