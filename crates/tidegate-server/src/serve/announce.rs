//! What is printed at the start: what is served, where, and what to try.

use std::fmt::Write as _;
use std::io::Write as _;

use tidegate::config::Config;

use super::Bound;
use super::args::ServeArgs;
use super::settings::FrontName;

/// What is known once the sockets are bound.
pub struct Announced {
    text: String,
    http_url: Option<String>,
}

impl Announced {
    pub fn new(
        config: &Config,
        args: &ServeArgs,
        http: Option<&Bound>,
        admin: Option<&Bound>,
    ) -> Self {
        let mut text = format!("tidegate {}: memory store, ", env!("CARGO_PKG_VERSION"));
        // Writing to memory cannot fail.
        let _ = match &args.config {
            Some(path) => {
                let count = config.policies.len();
                let noun = if count == 1 { "policy" } else { "policies" };
                writeln!(text, "{count} {noun} from {}", path.display())
            }
            None => {
                writeln!(text, "no config: `default` allows 100 per 1m to every client address")
            }
        };
        let url = |bound: &Bound| {
            let scheme = if bound.site.tls.is_some() { "https" } else { "http" };
            bound.socket.local_addr().ok().map(|address| format!("{scheme}://{address}"))
        };
        let (http_url, admin_url) = (http.and_then(url), admin.and_then(url));
        for (name, url) in [("http", &http_url), ("admin", &admin_url)] {
            let _ = writeln!(text, "  {name:<6} {}", url.as_deref().unwrap_or("off"));
        }
        Announced { text, http_url }
    }

    /// Prints it. A reader that has gone away does not matter.
    pub fn print(mut self, missing: &[FrontName], exposed: &[FrontName]) {
        for front in missing {
            let _ = writeln!(self.text, "  {:<6} not in this version", front.name());
        }
        if let Some(url) = &self.http_url {
            let _ = writeln!(
                self.text,
                "Try:\n  curl {url}/v1/check -H 'content-type: application/json' \
                 -d '{{\"attributes\":{{\"client_ip\":\"192.0.2.1\"}}}}'"
            );
        }
        for front in exposed {
            eprintln!(
                "WARNING: --insecure-no-auth: whoever can reach --{} needs no secret",
                front.name()
            );
        }
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(self.text.as_bytes()).and_then(|()| stdout.flush());
    }
}
