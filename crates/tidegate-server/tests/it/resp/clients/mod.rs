//! Real clients with their default settings: redis-cli, redis-py, ioredis and redis-rs.

use std::path::PathBuf;
use std::process::Command;

use redis::{Value, cmd};

use super::{POLICIES, start};
use crate::server_harness::Server;

/// Runs a program, which must succeed, and returns its output.
#[track_caller]
fn output(command: &mut Command, missing: &str) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{missing}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

const SECRET: &str = "s3cret";

/// Starts a server without authentication, and one that requires a secret.
fn servers(test: &str) -> [Server; 2] {
    let start = |name: &str| start(&format!("{test}-{name}")).config(POLICIES);
    [start("open").run(), start("closed").env("TIDEGATE_TOKENS", SECRET).run()]
}

fn redis_cli(server: &Server, args: &[&str]) -> String {
    let port = server.resp().port().to_string();
    let mut command = Command::new("redis-cli");
    command.args(["-p", &port]).args(args);
    output(&mut command, "redis-cli is installed (scripts/test does that; apt: redis-tools)")
}

#[test]
fn redis_cli_checks_and_authenticates() {
    let [open, closed] = servers("cli");
    let checked = |remaining| format!("1\n2\n{remaining}\n0\n3600000\nlogin\nexact\n");
    assert_eq!(redis_cli(&open, &["TG.CHECK", "login", "a"]), checked(1));
    let reply = redis_cli(&open, &["-3", "TG.CHECK", "login", "a"]);
    assert!(reply.starts_with("1\n2\n0\n0\n") && reply.ends_with("\nlogin\nexact\n"), "{reply}");
    assert_eq!(
        redis_cli(&open, &["CL.THROTTLE", "user123", "15", "30", "60"]),
        "0\n16\n15\n-1\n2\n"
    );
    assert_eq!(redis_cli(&open, &["-r", "3", "PING"]), "PONG\nPONG\nPONG\n");
    assert!(redis_cli(&open, &["INFO"]).contains("tidegate_version:"));
    let reply = redis_cli(&closed, &["TG.CHECK", "login", "a"]);
    assert_eq!(reply, "NOAUTH Authentication required.\n\n");
    let known = ["--no-auth-warning", "-a", SECRET, "TG.CHECK", "login", "a"];
    assert_eq!(redis_cli(&closed, &known), checked(1));
    let known =
        ["--no-auth-warning", "-3", "--user", "me", "--pass", SECRET, "TG.PEEK", "login", "a"];
    assert!(redis_cli(&closed, &known).starts_with("1\n2\n1\n0\n"));
}

/// Every `$ redis-cli` line of the page, and its output. Time passes, so waits of about an hour are
/// treated as an hour.
#[test]
fn redis_cli_prints_documented_output() {
    let page = format!("{}/../../docs/resp.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).expect("the page");
    let config = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    let server = start("page").config(config.expect("a config")).run();
    let mut checked = 0;
    for block in page.split("```console\n").skip(1) {
        let block = block.split("```").next().expect("an end");
        for example in block.split("$ redis-cli -p 6380 ").skip(1) {
            let (line, expected) = example.split_once('\n').expect("the output");
            let port = server.resp().port();
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("redis-cli --no-raw -p {port} {line}")]);
            let lines = output(&mut shell, "a shell");
            let hour = |line: &str| {
                let wait = line.strip_prefix("5) (integer) ").and_then(|wait| wait.parse().ok());
                let about = wait.is_some_and(|wait: u32| (3_540_000..=3_600_000).contains(&wait));
                if about { "5) (integer) 3600000\n".to_owned() } else { format!("{line}\n") }
            };
            assert_eq!(lines.lines().map(hour).collect::<String>(), expected, "{line}");
            checked += 1;
        }
    }
    assert_eq!(checked, 8);
}

/// The page lists the subcommands of `CLIENT HELP`, and all of them are supported.
#[test]
fn client_subcommands_are_documented() {
    let page = include_str!("../../../../../../docs/resp.md");
    let listed = page.split("`CLIENT` (").nth(1).and_then(|rest| rest.split(')').next());
    let listed: Vec<&str> = listed.expect("a list").split(", ").collect();
    let server = start("client").run();
    let help = redis_cli(&server, &["CLIENT", "HELP"]);
    let helped = help.lines().skip(1).filter(|line| !line.starts_with(' '));
    for name in helped.filter_map(|line| line.split_whitespace().next()) {
        assert!(listed.contains(&&*format!("`{name}`")), "{name} is not on the page");
    }
    for words in listed {
        let words = ["CLIENT"].into_iter().chain(words.trim_matches('`').split(' '));
        let reply = redis_cli(&server, &words.collect::<Vec<_>>());
        assert!(!reply.contains("unknown subcommand"), "{reply}");
    }
}

#[test]
fn every_command_of_redis_benchmark_is_decided() {
    let [open, _closed] = servers("benchmark");
    let port = open.resp().port().to_string();
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &port, "-q", "-n", "20000", "-P", "16", "-r", "1000", "--csv"]);
    command.args(["TG.CHECK", "api", "key:__rand_int__"]);
    let printed = output(&mut command, "redis-benchmark is installed (apt: redis-tools)");
    assert!(printed.contains("TG.CHECK api"), "{printed}");
    let name = "tidegate_decisions_total{policy=\"api\",limit=\"1000000 per 1h sliding-window\",mode=\"enforce\",outcome=\"allowed\",decided=\"exact\"}";
    assert_eq!(open.metric(name), Some(20_000));
}

/// Returns the path of an installed client, from a variable that `scripts/lib/resp.sh` sets.
fn installed(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable);
    path.map(PathBuf::from).unwrap_or_else(|| {
        panic!("{variable} is not set: scripts/test installs the client and sets it (scripts/lib/resp.sh)")
    })
}

/// Runs a script in this directory with the ports of both servers and the secret.
fn script(mut command: Command, name: &str, servers: &[Server; 2]) -> String {
    let path = format!("{}/tests/it/resp/clients/{name}", env!("CARGO_MANIFEST_DIR"));
    command.arg(path).args(servers.each_ref().map(|server| server.resp().port().to_string()));
    output(command.arg(SECRET), name)
}

#[test]
fn redis_py_script_succeeds() {
    let python = Command::new(installed("REDIS_PY_PYTHON"));
    assert_eq!(script(python, "redis_py.py", &servers("py")), "done\n");
}

#[test]
fn ioredis_script_succeeds() {
    let mut node = Command::new("node");
    node.env("NODE_PATH", installed("IOREDIS_MODULES"));
    assert_eq!(script(node, "ioredis.cjs", &servers("ioredis")), "done\n");
}

#[test]
fn redis_rs_checks_over_both_protocols() {
    let [open, closed] = servers("rs");
    let url = |server: &Server, user: &str| format!("redis://{user}{}", server.resp());
    for (url, key) in [
        (url(&open, ""), "a"),
        (url(&open, "") + "/?protocol=resp3", "b"),
        (url(&closed, &format!(":{SECRET}@")), "a"),
        (url(&closed, &format!("me:{SECRET}@")) + "/?protocol=resp3", "b"),
    ] {
        let client = redis::Client::open(&*url).expect("a URL");
        let mut connection = client.get_connection().expect("a connection");
        type Checked = (bool, u64, u64, Option<u64>, u64, String, String);
        let check = || cmd("TG.CHECK").arg("login").arg(key).to_owned();
        let checked: Checked = check().query(&mut connection).expect("a reply");
        assert_eq!(checked, (true, 2, 1, Some(0), 3_600_000, "login".into(), "exact".into()));
        let mut pipe = redis::pipe();
        let pipe = pipe.add_command(check()).add_command(check().arg("COST").arg(3).to_owned());
        let both: [Checked; 2] = pipe.query(&mut connection).expect("replies");
        assert_eq!((both[0].0, both[0].2, both[1].0, both[1].3), (true, 0, false, None));
        let cell: [i64; 5] =
            cmd("CL.THROTTLE").arg((key, 15, 30, 60)).query(&mut connection).expect("a reply");
        assert_eq!(cell, [0, 16, 15, -1, 2]);
        let refused = cmd("TG.CHECK").arg("nobody").arg(key).query::<Value>(&mut connection);
        let message = refused.expect_err("an unknown policy").to_string();
        assert!(message.contains("there is no policy `nobody`"), "{message}");
    }
    assert!(redis::Client::open(url(&closed, ":wrong@")).expect("a URL").get_connection().is_err());
}
