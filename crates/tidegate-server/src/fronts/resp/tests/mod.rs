//! Tests of the front without a socket: bytes in, bytes out, with a manual clock.
//!
//! - this file: every command, error and protocol case, and `CL.THROTTLE` and `THROTTLE` against
//!   published vectors and a naive limiter;
//! - `decoder.rs`: random and mutated bytes against a naive parser, however they are split.
//!
//! Tests that need a socket, a real client or a real Redis are in `tests/it/resp`.

mod decoder;

use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::config::Config;
use tidegate::unstable::gate::Gate;
use tidegate::unstable::stats::Stats;
use tidegate::{Limiter, ManualClock, Timestamp};
use tidegate_testkit::Random;

use super::RespFront;
use super::connection::{ConnBuffers, Leftover};
use super::pipeline::{self, Progress};
use super::session::Session;
use crate::authentication::{Access, Tokens};
use crate::server_state::ServerState;

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

/// A front with a store in memory.
struct TestFront {
    front: RespFront,
    clock: ManualClock,
}

impl TestFront {
    fn new(access: Access) -> Self {
        // A whole hour, so that windows begin when the tests do.
        let clock = ManualClock::new(Timestamp::from_micros(1_000_000 * 3_600 * 480_000));
        let limiter = Limiter::builder().clock(clock.clock()).max_keys(10_000).build();
        let config = Config::parse(POLICIES, "tidegate.yaml").expect("a config");
        let stats = Arc::new(Stats::new(clock.clock()));
        let gate = Gate::new(limiter.expect("memory"), config.policies, stats);
        let front = RespFront::new(Arc::new(gate), Arc::new(ServerState::new(10_000)), access);
        TestFront { front, clock }
    }

    fn without_secrets() -> Self {
        TestFront::new(Access::Local)
    }

    fn with_secrets() -> Self {
        TestFront::new(Access::Secrets(Tokens::new(["s3cret".into(), "other".into()])))
    }

    fn connect(&self) -> TestClient<'_> {
        TestClient {
            front: self,
            session: Session::new(7, &self.front),
            leftover: Leftover::default(),
        }
    }

    fn advance(&self, us: u64) {
        self.clock.advance(Duration::from_micros(us));
    }
}

/// A connection without a socket.
struct TestClient<'w> {
    front: &'w TestFront,
    session: Session,
    leftover: Leftover,
}

impl TestClient<'_> {
    /// Sends bytes, and returns the replies and whether the connection is closed.
    fn send(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut replies = Vec::new();
        let mut rest = bytes;
        loop {
            let mut buffers = ConnBuffers::with(&self.leftover);
            let room = buffers.input.len() - buffers.filled;
            let (now, later) = rest.split_at(rest.len().min(room));
            buffers.input[buffers.filled..][..now.len()].copy_from_slice(now);
            buffers.filled += now.len();
            rest = later;
            let progress = pipeline::answer(&self.front.front, &mut self.session, &mut buffers);
            replies.extend_from_slice(&buffers.output);
            buffers.output.clear();
            self.leftover = buffers.leave(0);
            match progress {
                Progress::Closed => return (replies, true),
                Progress::Complete if rest.is_empty() => return (replies, false),
                Progress::Complete | Progress::Paused => {}
            }
        }
    }

    /// Sends text, and returns the replies as text.
    fn exchange(&mut self, text: &str) -> String {
        let (replies, ends) = self.send(text.as_bytes());
        let replies = String::from_utf8(replies).expect("UTF-8");
        if ends { replies + "(closed)" } else { replies }
    }
}

/// Encodes a command as clients do.
fn command(words: &[&str]) -> String {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text += &format!("${}\r\n{word}\r\n", word.len());
    }
    text
}

/// The lines sent, and the replies to all of them.
type Row = (&'static str, &'static str);

fn run(front: impl Fn() -> TestFront, rows: &[Row]) {
    for (sent, expected) in rows {
        assert_eq!(front().connect().exchange(sent), *expected, "{sent:?}");
        // The replies do not depend on how the bytes are split.
        for at in 1..sent.len() {
            let front = front();
            let mut client = front.connect();
            let first = client.exchange(&sent[..at]);
            let whole = if first.ends_with("(closed)") {
                first
            } else {
                first + &client.exchange(&sent[at..])
            };
            assert_eq!(whole, *expected, "{sent:?} split at {at}");
        }
        let front = front();
        let mut client = front.connect();
        let mut whole = String::new();
        for byte in sent.as_bytes().chunks(1) {
            let (replies, ends) = client.send(byte);
            whole += std::str::from_utf8(&replies).expect("UTF-8");
            if ends {
                whole += "(closed)";
                break;
            }
        }
        assert_eq!(whole, *expected, "{sent:?} byte by byte");
    }
}

#[test]
fn replies_report_limits_remaining_units_and_waits() {
    #[rustfmt::skip]
    run(TestFront::without_secrets, &[
        ("TG.CHECK login a\r\n", "*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n"),
        ("*3\r\n$8\r\ntg.Check\r\n$5\r\nlogin\r\n$1\r\na\r\n", "*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n"),
        ("TG.CHECK login a COST 3\r\n", "*7\r\n:0\r\n:2\r\n:2\r\n$-1\r\n:0\r\n$5\r\nlogin\r\n$5\r\nexact\r\n"),
        ("HELLO 3\r\nTG.CHECK login a COST 3\r\n", concat!("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.0\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:7\r\n",
            "$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n",
            "*7\r\n:0\r\n:2\r\n:2\r\n_\r\n:0\r\n$5\r\nlogin\r\n$5\r\nexact\r\n")),
        ("TG.CHECK login a COST 2\r\nTG.CHECK login a\r\n", concat!("*7\r\n:1\r\n:2\r\n:0\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n",
            "*7\r\n:0\r\n:2\r\n:0\r\n:60000\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n")),
        // Keys are counted separately, and so are policies.
        ("TG.CHECK login a COST 2\r\nTG.CHECK login b\r\n", concat!("*7\r\n:1\r\n:2\r\n:0\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n",
            "*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n")),
        // A retry under an id is not charged again.
        ("TG.CHECK login a ID x\r\nTG.CHECK login a id x\r\nTG.PEEK login a\r\n", concat!("*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n",
            "*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n", "*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n")),
        ("TG.CHECK login a ID x\r\nTG.CHECK login a ID x COST 2\r\n", concat!("*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n",
            "-ERR ID: this idempotency id was used with another cost: use a new id\r\n")),
        // A forced charge, then a refund.
        ("TG.CHECK login a FORCE COST 5\r\nTG.CHECK login a COST -5\r\n", concat!("*7\r\n:1\r\n:2\r\n:0\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n",
            "*7\r\n:1\r\n:2\r\n:2\r\n:0\r\n:0\r\n$5\r\nlogin\r\n$5\r\nexact\r\n")),
        ("TG.CHECK login a FORCE\r\n", "*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n"),
        // The cost of the policy. The limit with the least remaining is reported.
        ("TG.CHECK api a\r\n", "*7\r\n:1\r\n:3\r\n:1\r\n:0\r\n:3600000\r\n$3\r\napi\r\n$5\r\nexact\r\n"),
        ("TG.CHECK watched a COST 2\r\n", "*7\r\n:1\r\n$-1\r\n$-1\r\n:0\r\n$-1\r\n$-1\r\n$5\r\nexact\r\n"),
        ("TG.CHECK nothing a\r\n", "*7\r\n:1\r\n$-1\r\n$-1\r\n:0\r\n$-1\r\n$-1\r\n$5\r\nexact\r\n"),
        ("TG.PEEK login a\r\nTG.PEEK jobs a\r\n", concat!("*7\r\n:1\r\n:2\r\n:2\r\n:0\r\n:0\r\n$5\r\nlogin\r\n$5\r\nexact\r\n",
            "*7\r\n:1\r\n:2\r\n:2\r\n:0\r\n:0\r\n$4\r\njobs\r\n$5\r\nexact\r\n")),
        ("TG.CHECK login a\r\nTG.RESET login a\r\nTG.RESET login a\r\nTG.PEEK login a\r\n", concat!("*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n",
            ":1\r\n:0\r\n", "*7\r\n:1\r\n:2\r\n:2\r\n:0\r\n:0\r\n$5\r\nlogin\r\n$5\r\nexact\r\n")),
        // Issue 15, item 13: TG.PEEK and TG.RESET accept the plain value of a key. TG.CHECK takes
        // it literally.
        ("TG.CHECK keyed header:x-api-key=k COST 2\r\nTG.PEEK keyed k\r\nTG.CHECK keyed k\r\nTG.RESET keyed k\r\nTG.RESET keyed k\r\n", concat!(
            "*7\r\n:1\r\n:2\r\n:0\r\n:0\r\n:60000\r\n$5\r\nkeyed\r\n$5\r\nexact\r\n",
            "*7\r\n:0\r\n:2\r\n:0\r\n:60000\r\n:60000\r\n$5\r\nkeyed\r\n$5\r\nexact\r\n",
            "*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nkeyed\r\n$5\r\nexact\r\n",
            ":1\r\n:1\r\n")),
        ("TG.PEEK keyed sk_l...#0123456789abcdef\r\n", "-ERR key: no key with the masked form `sk_l...#0123456789abcdef` is known here: a server knows those of its top keys and latest denials. Use the server whose log shows it, or the key itself; in a URL, write `#` as `%23`\r\n"),
        ("TG.LIMIT \"5 per 1m sliding-log\" a COST 2\r\n", "*7\r\n:1\r\n:5\r\n:3\r\n:0\r\n:60000\r\n$-1\r\n$5\r\nexact\r\n"),
        ("TG.LIMIT '5 per 1m sliding-log' a\r\nTG.LIMIT '5 per 1m sliding-log, 1 per 1s sliding-log' a\r\n", concat!("*7\r\n:1\r\n:5\r\n:4\r\n:0\r\n:60000\r\n$-1\r\n$5\r\nexact\r\n",
            "*7\r\n:1\r\n:1\r\n:0\r\n:0\r\n:1000\r\n$-1\r\n$5\r\nexact\r\n")),
        // Limits that a caller sends are counted separately from policies.
        ("TG.LIMIT '2 per 1m sliding-log' a COST 2\r\nTG.PEEK login a\r\n", concat!("*7\r\n:1\r\n:2\r\n:0\r\n:0\r\n:60000\r\n$-1\r\n$5\r\nexact\r\n",
            "*7\r\n:1\r\n:2\r\n:2\r\n:0\r\n:0\r\n$5\r\nlogin\r\n$5\r\nexact\r\n")),
    ]);
}

#[test]
fn rejects_invalid_commands() {
    #[rustfmt::skip]
    run(TestFront::without_secrets, &[
        ("TG.CHECK\r\n", "-ERR wrong number of arguments for 'tg.check' command: use TG.CHECK policy key [COST n] [ID id] [FORCE]\r\n"),
        ("TG.CHECK login\r\n", "-ERR wrong number of arguments for 'tg.check' command: use TG.CHECK policy key [COST n] [ID id] [FORCE]\r\n"),
        ("TG.PEEK login a b\r\n", "-ERR wrong number of arguments for 'tg.peek' command: use TG.PEEK policy key\r\n"),
        ("TG.RESET login\r\n", "-ERR wrong number of arguments for 'tg.reset' command: use TG.RESET policy key\r\n"),
        ("TG.LIMIT x\r\n", "-ERR wrong number of arguments for 'tg.limit' command: use TG.LIMIT limits key [COST n] [ID id] [FORCE]\r\n"),
        ("TG.CHECK nobody a\r\n", "-ERR policy: there is no policy `nobody`\r\n"),
        ("TG.PEEK nobody a\r\n", "-ERR policy: there is no policy `nobody`\r\n"),
        ("TG.PEEK logins a\r\n", "-ERR policy: there is no policy `logins`; did you mean `login`?\r\n"),
        ("TG.RESET nobody a\r\n", "-ERR policy: there is no policy `nobody`\r\n"),
        ("TG.CHECK \"\\xff\" a\r\n", "-ERR policy: not valid UTF-8\r\n"),
        ("TG.CHECK \"a\\r\\nb\" a\r\n", "-ERR policy: there is no policy `a\\x0d\\x0ab`\r\n"),
        ("TG.CHECK jobs a\r\n", "-ERR policy: policy `jobs` has a concurrency limit, which needs a permit: acquire one with POST /v1/permits\r\n"),
        ("TG.LIMIT '2 concurrent' a\r\n", "-ERR limit: a concurrency limit needs a permit: acquire one with POST /v1/permits\r\n"),
        ("TG.CHECK login ''\r\n", "-ERR key: it is empty: send the name of who is counted\r\n"),
        ("TG.CHECK login a COST\r\n", "-ERR syntax error: COST needs a value\r\n"),
        ("TG.CHECK login a ID\r\n", "-ERR syntax error: ID needs a value\r\n"),
        ("TG.CHECK login a COST 1 COST 1\r\n", "-ERR syntax error: COST is given twice\r\n"),
        ("TG.CHECK login a ID x ID x\r\n", "-ERR syntax error: ID is given twice\r\n"),
        ("TG.CHECK login a HARD\r\n", "-ERR syntax error: `HARD` is not an option of TG.CHECK: use COST n, ID id or FORCE\r\n"),
        ("TG.LIMIT 5 per 1m alice\r\n", "-ERR limit: put the whole limit in quotes: TG.LIMIT \"5 per 1m\" KEY\r\n"),
        ("TG.LIMIT '1 per 1s' a HARD\r\n", "-ERR syntax error: `HARD` is not an option of TG.LIMIT: use COST n, ID id or FORCE\r\n"),
        ("TG.CHEK login alice\r\n", "-ERR unknown command 'TG.CHEK', with args beginning with: 'login' 'alice' (did you mean TG.CHECK?)\r\n"),
        ("TG.CHEK\r\n", "-ERR unknown command 'TG.CHEK', with args beginning with: (did you mean TG.CHECK?)\r\n"),
        ("TG.CHECK login a COST one\r\n", "-ERR COST: value is not an integer or out of range: use a whole number from -1000000000000 to 1000000000000\r\n"),
        ("TG.CHECK login a COST 1000000000001\r\n", "-ERR COST: value is not an integer or out of range: use a whole number from -1000000000000 to 1000000000000\r\n"),
        ("TG.CHECK login a COST 99999999999999999999\r\n", "-ERR COST: value is not an integer or out of range: use a whole number from -1000000000000 to 1000000000000\r\n"),
        ("TG.CHECK login a COST -1 FORCE\r\n", "-ERR FORCE: cannot be combined with a negative COST, which is a refund\r\n"),
        ("TG.CHECK login a ID ''\r\n", "-ERR ID: it is empty: leave it out, or send one per request\r\n"),
        ("TG.LIMIT '5 per 1m, 6 per 1m' a\r\n", concat!("-ERR limit: limits 1 and 2 have the same algorithm and window, so they would share one count: ",
            "keep the stricter one, or give them different windows or algorithms\r\n")),
        ("TG.LIMIT '4 per 1h, 9 per 1d, 4 per 1h' a\r\n", concat!("-ERR limit: limits 1 and 3 have the same algorithm and window, so they would share one count: ",
            "keep the stricter one, or give them different windows or algorithms\r\n")),
    ]);
    let front = TestFront::without_secrets();
    let mut client = front.connect();
    let long = "x".repeat(1025);
    let reply = client.exchange(&command(&["TG.CHECK", "login", &long]));
    assert_eq!(reply, "-ERR key: it is longer than 1024 bytes: send a hash of it\r\n");
    assert!(client.exchange(&command(&["TG.CHECK", "login", &long[1..]])).starts_with("*7"));
    let reply = client.exchange(&command(&["TG.CHECK", "login", "a", "ID", &long[..257]]));
    assert_eq!(reply, "-ERR ID: it is longer than 256 bytes: shorten it\r\n");
    let reply = client.exchange(&command(&["TG.LIMIT", &["1 per 1s"; 65].join(","), "a"]));
    assert!(reply.starts_with("-ERR limit: there are more than "), "{reply}");
    // The error is on one line, without the excerpt and caret.
    let reply = client.exchange("TG.LIMIT '9 per 1s, 5 per fortnight' a\r\nTG.LIMIT '' a\r\n");
    let time = "-ERR limit: `fortnight`: expected a length of time: write a number and ms, s, m, h, d or w, for example `10s`\r\n";
    let nothing = "-ERR limit: ``: this is not a limit: write for example `10 per 1s`\r\n";
    assert_eq!(reply, [time, nothing].concat());
    assert!(client.exchange("TG.LIMIT \"\\xff\" a\r\n").starts_with("-ERR limit: not valid UTF-8"));
}

#[test]
fn answers_introspection_commands() {
    #[rustfmt::skip]
    run(TestFront::without_secrets, &[
        ("CONFIG GET max*-*y\r\n", "*2\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n"),
        ("CONFIG GET **mem*y *VE\r\n", "*6\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n$4\r\nsave\r\n$0\r\n\r\n"),
        ("CONFIG GET ?ave x ''\r\n", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
        ("CONFIG HELP\r\n", concat!("*5\r\n+CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n",
            "+GET <pattern>\r\n+    Return settings whose name is like <pattern>.\r\n+HELP\r\n+    Print this help.\r\n")),
    ]);
    let front = TestFront::without_secrets();
    let mut client = front.connect();
    let all = client.exchange("CONFIG GET *\r\n");
    assert_eq!(client.exchange("CONFIG GET **\r\n"), all);
    assert!(all.starts_with("*14\r\n") && all.contains("$5\r\n32768\r\n"), "{all}");
    for (command, lines) in [("CLIENT", 19), ("COMMAND", 13)] {
        let help = client.exchange(&format!("{command} help\r\n"));
        let head = format!(
            "*{lines}\r\n+{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n"
        );
        assert!(
            help.starts_with(&head) && help.ends_with("+HELP\r\n+    Print this help.\r\n"),
            "{help}"
        );
        assert_eq!(help.lines().count(), lines + 1, "{help}");
    }
}

#[test]
fn transactions_charge_at_exec_or_not_at_all() {
    const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    #[rustfmt::skip]
    run(TestFront::without_secrets, &[
        ("MULTI\r\nEXEC\r\n", "+OK\r\n*0\r\n"),
        ("MULTI\r\nTG.CHECK login a\r\nTG.CHECK login a COST 3\r\nPING\r\nTG.RESET login a\r\nEXEC\r\nPING\r\n", concat!("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n",
            "*7\r\n:1\r\n:2\r\n:1\r\n:0\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n", "*7\r\n:0\r\n:2\r\n:1\r\n$-1\r\n:60000\r\n$5\r\nlogin\r\n$5\r\nexact\r\n",
            "+PONG\r\n:1\r\n+PONG\r\n")),
        // Nothing is charged before EXEC, and nothing by a discarded transaction.
        ("MULTI\r\nTG.CHECK login a\r\nDISCARD\r\nTG.RESET login a\r\n", "+OK\r\n+QUEUED\r\n+OK\r\n:0\r\n"),
        ("MULTI\r\nTG.CHECK login a\r\nRESET\r\nTG.RESET login a\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n+RESET\r\n:0\r\n-ERR EXEC without MULTI\r\n"),
        ("MULTI\r\nTG.CHECK login a\r\nQUIT\r\n", "+OK\r\n+QUEUED\r\n+OK\r\n(closed)"),
        // An invalid command discards the whole transaction.
        ("MULTI\r\nTG.CHECK login a\r\nSET a b\r\nTG.CHECK login a\r\nEXEC\r\nTG.RESET login a\r\n", concat!("+OK\r\n+QUEUED\r\n",
            "-ERR unknown command 'SET', with args beginning with: 'a' 'b' \r\n", "+QUEUED\r\n",
            "-EXECABORT Transaction discarded because of previous errors.\r\n", ":0\r\n")),
        ("MULTI\r\nTG.CHECK login\r\nEXEC\r\n", concat!("+OK\r\n-ERR wrong number of arguments for 'tg.check' command: use TG.CHECK policy key [COST n] [ID id] [FORCE]\r\n",
            "-EXECABORT Transaction discarded because of previous errors.\r\n")),
        ("MULTI\r\nCOMMAND DOCS\r\nEXEC\r\n", concat!("+OK\r\n-ERR Command not allowed inside a transaction\r\n",
            "-EXECABORT Transaction discarded because of previous errors.\r\n")),
        // An error of the execution is one of the replies.
        ("MULTI\r\nTG.CHECK nobody a\r\nECHO hi\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n-ERR policy: there is no policy `nobody`\r\n$2\r\nhi\r\n"),
        ("MULTI\r\nMULTI\r\nPING\r\nEXEC\r\n", "+OK\r\n-ERR MULTI calls can not be nested\r\n+QUEUED\r\n*1\r\n+PONG\r\n"),
        ("EXEC\r\nDISCARD\r\nEXEC now\r\n", concat!("-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n",
            "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n")),
        ("MULTI\r\nPOST / HTTP/1.1\r\n", "+OK\r\n(closed)"),
    ]);
    run(TestFront::with_secrets, &[("MULTI\r\n", "-NOAUTH Authentication required.\r\n")]);
    // The size of queued commands is bounded.
    let front = TestFront::without_secrets();
    let mut client = front.connect();
    let echo = command(&["ECHO", &"x".repeat(10_000)]);
    let reply = client.exchange(&format!("MULTI\r\n{}EXEC\r\nPING\r\n", echo.repeat(1000)));
    let refused = "-ERR the commands since MULTI take more than 65536 bytes: send EXEC sooner, \
        or a pipeline without MULTI (in redis-py, `transaction=False`)\r\n";
    let queued = |count: usize| "+QUEUED\r\n".repeat(count);
    assert_eq!(reply, format!("+OK\r\n{}{refused}{}{ABORTED}+PONG\r\n", queued(6), queued(993)));
}

#[test]
fn authenticates_with_secrets() {
    const NO: &str = "-NOAUTH Authentication required.\r\n";
    const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    #[rustfmt::skip]
    run(TestFront::with_secrets, &[
        ("PING\r\nAUTH s3cret\r\nPING\r\n", concat!("-NOAUTH Authentication required.\r\n", "+OK\r\n+PONG\r\n")),
        ("AUTH anybody other\r\nPING\r\nRESET\r\nPING\r\n", "+OK\r\n+PONG\r\n+RESET\r\n-NOAUTH Authentication required.\r\n"),
        ("TG.CHECK login a\r\n", NO), ("CL.THROTTLE a 1 1 1\r\n", NO), ("INFO\r\n", NO), ("COMMAND\r\n", NO), ("CLIENT ID\r\n", NO),
        ("AUTH s3cre\r\n", WRONG), ("AUTH s3cret2\r\n", WRONG), ("AUTH ''\r\n", WRONG), ("AUTH default first\r\n", WRONG),
        ("AUTH a b c\r\n", "-ERR syntax error\r\n"),
        ("HELLO 3 AUTH default s3cre\r\nPING\r\n", concat!("-WRONGPASS invalid username-password pair or user is disabled.\r\n", "-NOAUTH Authentication required.\r\n")),
        ("HELLO 3\r\n", concat!("-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> ",
            "option can be used to authenticate the client and select the RESP protocol version at the same time\r\n")),
        ("QUIT\r\n", "+OK\r\n(closed)"),
        ("nonsense\r\n", "-ERR unknown command 'nonsense', with args beginning with: \r\n"),
        ("*11\r\n", "-ERR Protocol error: unauthenticated multibulk length\r\n(closed)"),
        ("*1\r\n$16385\r\n", "-ERR Protocol error: unauthenticated bulk length\r\n(closed)"),
    ]);
    let front = TestFront::with_secrets();
    let hello =
        front.connect().exchange("HELLO 3 AUTH default s3cret SETNAME me\r\nCLIENT GETNAME\r\n");
    assert!(hello.starts_with("%7\r\n") && hello.ends_with("$2\r\nme\r\n"), "{hello}");
    // An attacker has to reconnect after a few guesses.
    let guesses = front.connect().exchange(&"AUTH guess\r\n".repeat(1000));
    assert_eq!(guesses, WRONG.repeat(16) + "(closed)");
}

#[test]
fn rejects_malformed_input() {
    #[rustfmt::skip]
    run(TestFront::without_secrets, &[
        ("PING\r\n*x\r\nPING\r\n", "+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n(closed)"),
        ("*1000000\r\n", "-ERR Protocol error: invalid multibulk length\r\n(closed)"),
        ("*1025\r\n", "-ERR Protocol error: invalid multibulk length\r\n(closed)"),
        ("*99999999999999999999\r\n", "-ERR Protocol error: invalid multibulk length\r\n(closed)"),
        ("*2\r\n$4\r\nECHO\r\n$4294967296\r\n", "-ERR Protocol error: invalid bulk length\r\n(closed)"),
        ("*2\r\n$4\r\nECHO\r\n$32769\r\n", "-ERR Protocol error: invalid bulk length\r\n(closed)"),
        ("*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length\r\n(closed)"),
        ("*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'\r\n(closed)"),
        ("*1\r\n\u{1}\r\n", "-ERR Protocol error: expected '$', got '?'\r\n(closed)"),
        ("*11111111111111111111111111111111111111111111\r\n", "-ERR Protocol error: too big mbulk count string\r\n(closed)"),
        ("*1\r\n$11111111111111111111111111111111111111111111\r\n", "-ERR Protocol error: too big bulk count string\r\n(closed)"),
        ("ECHO 'a\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n(closed)"),
        ("ECHO 'a'b\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n(closed)"),
        ("*0\r\n\r\n*-1\r\nPING\r\n", "+PONG\r\n"),
        // A browser, whose request body would be executed as commands.
        ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\nTG.RESET login a\r\n", "(closed)"),
        ("PUT / HTTP/1.1\r\n\r\nTG.RESET login a\r\n", "(closed)"),
        ("OPTIONS /x HTTP/1.0\r\nPING\r\n", "(closed)"),
        ("get\r\nHost: localhost\r\nPING\r\n", "-ERR unknown command 'get', with args beginning with: \r\n(closed)"),
    ]);
    let front = TestFront::without_secrets();
    let line = "x".repeat(70_000);
    assert_eq!(
        front.connect().exchange(&line),
        "-ERR Protocol error: too big inline request\r\n(closed)"
    );
    // Every argument is within its bound, but the whole command is not.
    let many = command(&["ECHO", &"x".repeat(30_000), &"x".repeat(30_000), &"x".repeat(30_000)]);
    assert_eq!(front.connect().exchange(&many), "-ERR Protocol error: too big request\r\n(closed)");
    let all = "x".repeat(32 * 1024);
    assert_eq!(front.connect().exchange(&command(&["ECHO", &all])), format!("$32768\r\n{all}\r\n"));
}

#[test]
fn long_replies_are_written_in_parts() {
    let front = TestFront::without_secrets();
    let (replies, ends) = front.connect().send(&b"COMMAND DOCS\r\n".repeat(4000));
    let one = front.connect().send(b"COMMAND DOCS\r\n").0;
    assert_eq!((replies.len(), ends), (4000 * one.len(), false));
    assert!(replies.ends_with(&one));
}

/// Parses the reply to `CL.THROTTLE` or `THROTTLE`.
fn numbers(reply: &str) -> Vec<i64> {
    let mut lines = reply.lines();
    assert_eq!(lines.next(), Some("*5"), "{reply}");
    lines.map(|line| line.strip_prefix(':').expect(reply).parse().expect(reply)).collect()
}

#[test]
fn cl_throttle_gives_the_replies_of_redis_cell_examples() {
    let front = TestFront::without_secrets();
    let mut client = front.connect();
    let mut ask = |words: &[&str]| numbers(&client.exchange(&command(words)));
    // The README of redis-cell.
    assert_eq!(ask(&["CL.THROTTLE", "user123", "15", "30", "60"]), [0, 16, 15, -1, 2]);
    assert_eq!(ask(&["cl.throttle", "user123", "15", "30", "60", "1"]), [0, 16, 14, -1, 4]);
    // The end-to-end test of redis-cell.
    assert_eq!(ask(&["CL.THROTTLE", "e2e", "0", "1", "2", "1"]), [0, 1, 0, -1, 2]);
    assert_eq!(ask(&["CL.THROTTLE", "e2e", "0", "1", "2", "1"]), [1, 1, 0, 2, 2]);
    front.advance(2_000_000);
    assert_eq!(ask(&["CL.THROTTLE", "e2e", "0", "1", "2", "1"]), [0, 1, 0, -1, 2]);
}

/// The test table of redis-cell: a burst of five, one per second. Time in milliseconds, quantity,
/// and then remaining, reset, retry and whether it was limited.
#[rustfmt::skip]
const TABLE: [(u64, i64, i64, i64, i64, i64); 15] = [
    (0, 6, 5, 0, -1, 1),
    (0, 1, 4, 1, -1, 0), (0, 1, 3, 2, -1, 0), (0, 1, 2, 3, -1, 0), (0, 1, 1, 4, -1, 0),
    (0, 1, 0, 5, -1, 0), (0, 1, 0, 5, 1, 1),
    (3000, 1, 2, 3, -1, 0), (3100, 1, 1, 4, -1, 0), (4000, 1, 1, 4, -1, 0),
    (8000, 1, 4, 1, -1, 0), (9500, 1, 4, 1, -1, 0),
    (9500, 0, 4, 1, -1, 0), (9500, 2, 2, 3, -1, 0), (9500, 5, 2, 3, 3, 1),
];

#[test]
fn matches_redis_cell_table() {
    let front = TestFront::without_secrets();
    let mut client = front.connect();
    let mut now_ms = 0;
    for (at_ms, quantity, remaining, reset, retry, limited) in TABLE {
        front.advance((at_ms - now_ms) * 1_000);
        now_ms = at_ms;
        let words = ["CL.THROTTLE", "foo", "4", "1", "1", &quantity.to_string()];
        let got = numbers(&client.exchange(&command(&words)));
        assert_eq!(got, [limited, 5, remaining, retry, reset], "{quantity} at {at_ms} ms");
    }
}

#[test]
fn rejects_what_redis_cell_rejects() {
    const USAGE: &str = "-Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]\r\n";
    #[rustfmt::skip]
    let rows = [
        ("CL.THROTTLE\r\n", USAGE), ("CL.THROTTLE a 1 1\r\n", USAGE), ("CL.THROTTLE a 1 1 1 1 1\r\n", USAGE),
        ("CL.THROTTLE a x 1 1\r\n", "-Cell error: Couldn't parse as integer: x\r\n"),
        ("CL.THROTTLE a 1 1.5 1\r\n", "-Cell error: Couldn't parse as integer: 1.5\r\n"),
        ("CL.THROTTLE a 1 1 99999999999999999999\r\n", "-Cell error: Couldn't parse as integer: 99999999999999999999\r\n"),
        ("CL.THROTTLE a 1 1 1 \"\"\r\n", "-Cell error: Couldn't parse as integer: \r\n"),
        ("CL.THROTTLE a 1 1 1 \"a\\r\\nb\"\r\n", "-Cell error: Couldn't parse as integer: a  b\r\n"),
        ("CL.THROTTLE a 1 0 1\r\n", "-Cell error: Zero rates are not supported\r\n"),
        ("CL.THROTTLE a 1 1 0\r\n", "-Cell error: Zero rates are not supported\r\n"),
        // Parameters that redis-cell does not reject, and parameters that are not a valid limit
        // here.
        ("CL.THROTTLE a 1 -1 1\r\n", "-ERR count: it is negative: use a whole number from 1\r\n"),
        ("CL.THROTTLE a 1 1 -1\r\n", "-ERR period: it is negative: use a whole number from 1\r\n"),
        ("CL.THROTTLE a 1 1 31622401\r\n", "-ERR period: it is out of range: use a whole number up to 31622400\r\n"),
        ("CL.THROTTLE a 1 1000000000001 1\r\n", "-ERR count: it is out of range: use a whole number up to 1000000000000\r\n"),
        ("CL.THROTTLE a 1000000000000 1 1\r\n", "-ERR max_burst: it is out of range: use a whole number up to 999999999999\r\n"),
        ("CL.THROTTLE a 9223372036854775807 1 1\r\n", "-ERR max_burst: it is out of range: use a whole number up to 999999999999\r\n"),
        // As in redis-cell: an empty key is a key, `+` is a sign, and no capacity admits nothing.
        ("CL.THROTTLE '' +1 +1 +1\r\n", "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n"),
        ("CL.THROTTLE a -1 1 1\r\n", "*5\r\n:1\r\n:0\r\n:0\r\n:-1\r\n:0\r\n"),
        ("CL.THROTTLE k -9223372036854775808 30 60\r\n", "*5\r\n:1\r\n:-9223372036854775807\r\n:0\r\n:-1\r\n:0\r\n"),
        ("CL.THROTTLE a -5 1 1\r\n", "*5\r\n:1\r\n:-4\r\n:0\r\n:-1\r\n:0\r\n"),
        // A refund.
        ("CL.THROTTLE a 1 1 1\r\nCL.THROTTLE a 1 1 1 -1\r\n", "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n*5\r\n:0\r\n:2\r\n:2\r\n:-1\r\n:0\r\n"),
    ];
    for (sent, expected) in rows {
        assert_eq!(TestFront::without_secrets().connect().exchange(sent), expected, "{sent:?}");
    }
}

#[test]
fn throttlecrab_replies_have_their_own_order() {
    const ARITY: &str = "-ERR wrong number of arguments for 'throttle' command: use THROTTLE key max_burst count_per_period period [quantity]\r\n";
    #[rustfmt::skip]
    let rows = [
        ("THROTTLE a 2 60 60\r\n", "*5\r\n:1\r\n:2\r\n:1\r\n:1\r\n:0\r\n"),
        ("throttle a 2 60 60 2\r\nTHROTTLE a 2 60 60\r\n", "*5\r\n:1\r\n:2\r\n:0\r\n:2\r\n:0\r\n*5\r\n:0\r\n:2\r\n:0\r\n:2\r\n:1\r\n"),
        ("THROTTLE a 2 60 60 3\r\n", "*5\r\n:0\r\n:2\r\n:2\r\n:0\r\n:-1\r\n"),
        ("THROTTLE a 1 60 60\r\nTHROTTLE a 1 60 60 0\r\n", "*5\r\n:1\r\n:1\r\n:0\r\n:1\r\n:0\r\n*5\r\n:1\r\n:1\r\n:0\r\n:1\r\n:0\r\n"),
        ("THROTTLE\r\n", ARITY), ("THROTTLE a 1 1\r\n", ARITY), ("THROTTLE a 1 1 1 1 1\r\n", ARITY),
        ("THROTTLE a x 1 1\r\n", "-ERR invalid max_burst: use a whole number\r\n"),
        ("THROTTLE a 1 x 1\r\n", "-ERR invalid count_per_period: use a whole number\r\n"),
        ("THROTTLE a 1 1 x\r\n", "-ERR invalid period: use a whole number\r\n"),
        ("THROTTLE a 1 1 1 x\r\n", "-ERR invalid quantity: use a whole number\r\n"),
        ("THROTTLE a 1 1 1 -1\r\n", "-ERR negative quantity: -1: use a whole number from 0\r\n"),
        // The error did not name the argument.
        ("THROTTLE a 0 1 1\r\n", "-ERR invalid rate limit parameters: max_burst: use a whole number from 1\r\n"),
        ("THROTTLE a 1 0 1\r\n", "-ERR invalid rate limit parameters: count_per_period: use a whole number from 1\r\n"),
        ("THROTTLE a 1 1 -1\r\n", "-ERR invalid rate limit parameters: period: use a whole number from 1\r\n"),
    ];
    for (sent, expected) in rows {
        assert_eq!(TestFront::without_secrets().connect().exchange(sent), expected, "{sent:?}");
    }
}

/// The generic cell rate algorithm by its definition: a theoretical arrival time per key, in
/// nanoseconds. Intervals are whole microseconds, so that the rounding of redis-cell's interval has
/// no effect.
struct Naive {
    interval_ns: i128,
    limit: i128,
    arrival_ns: i128,
}

impl Naive {
    fn ask(&mut self, now_ns: i128, quantity: i128) -> [i128; 5] {
        let tolerance = self.interval_ns * self.limit;
        let arrival = self.arrival_ns.max(now_ns);
        let next = arrival + self.interval_ns * quantity;
        let early = next - tolerance - now_ns;
        let limited = early > 0;
        let after = if limited { arrival } else { next };
        if !limited {
            self.arrival_ns = next;
        }
        let seconds = |ns: i128| ns / 1_000_000_000 + i128::from(ns % 1_000_000_000 >= 1_000_000);
        let possible = self.interval_ns * quantity <= tolerance;
        let retry = if limited && possible { seconds(early) } else { -1 };
        let remaining = (tolerance - (after - now_ns)) / self.interval_ns;
        [i128::from(limited), self.limit, remaining, retry, seconds(after - now_ns)]
    }
}

#[test]
fn token_bucket_matches_gcra() {
    let mut random = Random(1);
    let mut denied = 0;
    for key in 0..400 {
        let front = TestFront::without_secrets();
        let mut client = front.connect();
        let period_s = 1 + random.below(120);
        let divisors: Vec<u64> =
            (1..=10_000).filter(|count| (period_s * 1_000_000).is_multiple_of(*count)).collect();
        let count =
            divisors[usize::try_from(random.below(divisors.len() as u64)).expect("an index")];
        let burst = random.below(20);
        let interval_us = period_s * 1_000_000 / count;
        let mut naive = Naive {
            interval_ns: i128::from(interval_us) * 1_000,
            limit: i128::from(burst) + 1,
            arrival_ns: 0,
        };
        let mut now_us = 0;
        for _ in 0..60 {
            let pause_us = match random.below(4) {
                0 => 0,
                1 => random.below(interval_us) + 1,
                2 => random.below(interval_us * (burst + 2)) + 1,
                _ => interval_us * random.below(3),
            };
            now_us += pause_us;
            front.advance(pause_us);
            let quantity = random.below(burst + 3);
            let words = [burst, count, period_s, quantity].map(|number| number.to_string());
            let [burst, count, period, amount] = words.each_ref().map(|word| &**word);
            let sent = command(&["CL.THROTTLE", &format!("k{key}"), burst, count, period, amount]);
            let got: Vec<i128> =
                numbers(&client.exchange(&sent)).into_iter().map(i128::from).collect();
            let expected = naive.ask(i128::from(now_us) * 1_000, i128::from(quantity));
            assert_eq!(got, expected, "{words:?} after {now_us} us");
            denied += expected[0];
        }
    }
    assert!((4_000..20_000).contains(&denied), "{denied} were denied: too few or too many to tell");
}
