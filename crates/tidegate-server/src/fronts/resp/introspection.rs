//! Commands with which clients inspect the server when they connect.
//!
//! Clients derive the available commands from the version. The reported version is that of the
//! Redis whose connection commands are implemented; `INFO` also reports that of tidegate.

use std::fmt::Write as _;

use super::RespFront;
use super::codec::Replies;
use super::codec::{Args, MAX_BULK_BYTES};
use super::commands::{ALL, Spec};
use super::session::{Session, unknown_subcommand};
use super::wrong_arity;
use crate::error::RequestError;
use crate::server_state::FrontName;

/// The version of Redis whose connection commands are implemented.
const REDIS_VERSION: &str = "7.2.0";

/// [`MAX_BULK_BYTES`] as text.
const MAX_BULK_TEXT: &str = "32768";
const _: () = assert!(MAX_BULK_BYTES == 32_768);

/// Settings that clients read, with values that describe tidegate: nothing is persisted or evicted,
/// and idle connections are not closed.
const SETTINGS: [(&str, &str); 7] = [
    ("appendonly", "no"),
    ("databases", "1"),
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
    ("proto-max-bulk-len", MAX_BULK_TEXT),
    ("save", ""),
    ("timeout", "0"),
];

/// Replies to `HELLO`.
pub fn hello(session: &Session, replies: &mut Replies<'_>) {
    replies.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        replies.bulk(name);
        replies.bulk(value);
    }
    replies.bulk("proto");
    replies.number(session.protocol.number());
    replies.bulk("id");
    replies.count(session.id);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        replies.bulk(name);
        replies.bulk(value);
    }
    replies.bulk("modules");
    replies.array(0);
}

/// Replies to `CLIENT INFO` and `CLIENT LIST`, with this connection only: clients must not see
/// others.
pub fn client(session: &Session, replies: &mut Replies<'_>) {
    replies.text(&format!(
        "id={} name={} flags=N db=0 user=default resp={}\n",
        session.id,
        String::from_utf8_lossy(&session.name),
        session.protocol.number()
    ));
}

/// `INFO [section...]`.
pub fn info(front: &RespFront, args: &Args<'_>, replies: &mut Replies<'_>) {
    let asked = |section: &str| {
        let is = |name: &&[u8]| {
            let all = ["all", "everything", "default", section];
            all.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()))
        };
        args.len() == 1 || args[1..].iter().any(is)
    };
    let mut text = String::new();
    for (section, lines) in sections(front) {
        if asked(section) {
            let gap = if text.is_empty() { "" } else { "\r\n" };
            // Writing to memory cannot fail.
            let _ = write!(text, "{gap}# {section}\r\n");
            for (name, value) in lines {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
    }
    replies.text(&text);
}

type InfoFields = Vec<(&'static str, String)>;

fn sections(front: &RespFront) -> [(&'static str, InfoFields); 5] {
    let text = str::to_owned;
    let server_state = &front.server_state;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let uptime = now.unwrap_or_default().saturating_sub(server_state.started());
    let server = vec![
        ("redis_version", text(REDIS_VERSION)),
        ("tidegate_version", text(env!("CARGO_PKG_VERSION"))),
        ("redis_mode", text("standalone")),
        ("process_id", std::process::id().to_string()),
        ("uptime_in_seconds", uptime.as_secs().to_string()),
    ];
    let clients =
        vec![("connected_clients", server_state.connections(FrontName::Resp).to_string())];
    // Clients that connect wait until this is 0.
    let persistence = vec![("loading", text("0"))];
    let keyspace = vec![("tracked_keys", front.gate.limiter().stats().tracked_keys.to_string())];
    let replication = vec![("role", text("master")), ("connected_slaves", text("0"))];
    [
        ("Server", server),
        ("Clients", clients),
        ("Persistence", persistence),
        ("Replication", replication),
        ("Keyspace", keyspace),
    ]
}

/// `CONFIG GET pattern...`. Settings cannot be changed.
pub fn config(args: &Args<'_>, replies: &mut Replies<'_>) -> Result<(), RequestError> {
    if args[1].eq_ignore_ascii_case(b"SET") {
        let detail = "settings cannot be changed here: see `tidegate config schema`";
        return Err(RequestError::field("CONFIG SET", detail));
    }
    if args[1].eq_ignore_ascii_case(b"HELP") {
        help(
            "CONFIG",
            &[("GET <pattern>", "Return settings whose name is like <pattern>.")],
            replies,
        );
        return Ok(());
    }
    if !args[1].eq_ignore_ascii_case(b"GET") {
        return Err(unknown_subcommand("CONFIG", args[1]));
    }
    if args.len() < 3 {
        return Err(wrong_arity("config|get"));
    }
    let asked =
        |name: &str| args[2..].iter().any(|pattern| matches_pattern(name.as_bytes(), pattern));
    let found = || SETTINGS.iter().filter(|(name, _)| asked(name));
    replies.map(found().count());
    for (name, value) in found() {
        replies.bulk(name);
        replies.bulk(value);
    }
    Ok(())
}

/// Whether a name matches a pattern, in which `*` matches any number of characters and `?` matches
/// one.
fn matches_pattern(name: &[u8], pattern: &[u8]) -> bool {
    let (mut at, mut pattern_at) = (0, 0);
    // The position of the last star, and the position in the name up to which it matches so far.
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match pattern.get(pattern_at) {
            Some(b'*') => {
                star = Some((pattern_at, at));
                pattern_at += 1;
            }
            Some(byte) if *byte == b'?' || byte.eq_ignore_ascii_case(&name[at]) => {
                at += 1;
                pattern_at += 1;
            }
            _ => match star {
                Some((star_at, until)) => {
                    (at, pattern_at) = (until + 1, star_at + 1);
                    star = Some((star_at, until + 1));
                }
                None => return false,
            },
        }
    }
    pattern[pattern_at..].iter().all(|byte| *byte == b'*')
}

/// Replies to `HELP` in the form of Redis, with the subcommands of a command.
pub fn help(command: &str, subcommands: &[(&str, &str)], replies: &mut Replies<'_>) {
    replies.array(2 * subcommands.len() + 3);
    replies.simple(&format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for (subcommand, about) in subcommands.iter().chain(&[("HELP", "Print this help.")]) {
        replies.simple(subcommand);
        replies.simple(&format!("    {about}"));
    }
}

/// The subcommands of `COMMAND`.
const COMMAND_SUBCOMMANDS: [(&str, &str); 5] = [
    ("(no subcommand)", "Return details about all commands."),
    ("COUNT", "Return the number of commands."),
    ("DOCS [<command-name> ...]", "Return the documentation of commands."),
    ("INFO [<command-name> ...]", "Return details about commands."),
    ("LIST", "Return the names of all commands."),
];

/// The subcommands of `CLIENT`.
pub const CLIENT_SUBCOMMANDS: [(&str, &str); 8] = [
    ("GETNAME", "Return the name of this connection."),
    ("ID", "Return the ID of this connection."),
    ("INFO", "Return information about this connection."),
    ("LIST", "Return information about this connection, as the only one."),
    ("NO-EVICT (ON|OFF)", "Accepted and ignored: nothing is evicted."),
    ("NO-TOUCH (ON|OFF)", "Accepted and ignored: nothing is evicted."),
    ("SETINFO <option> <value>", "Accepted and ignored."),
    ("SETNAME <name>", "Name this connection."),
];

/// `COMMAND [COUNT | LIST | INFO name... | DOCS name...]`.
pub fn command(args: &Args<'_>, replies: &mut Replies<'_>) -> Result<(), RequestError> {
    let Some(subcommand) = args.get(1) else {
        replies.array(ALL.len());
        ALL.iter().for_each(|spec| describe(spec, replies));
        return Ok(());
    };
    let names = &args[2..];
    let is = |name: &str| subcommand.eq_ignore_ascii_case(name.as_bytes());
    if is("count") && names.is_empty() {
        replies.count(ALL.len() as u64);
    } else if is("list") && names.is_empty() {
        replies.array(ALL.len());
        ALL.iter().for_each(|spec| replies.bulk(spec.name));
    } else if is("info") && names.is_empty() {
        replies.array(ALL.len());
        ALL.iter().for_each(|spec| describe(spec, replies));
    } else if is("info") {
        replies.array(names.len());
        for name in names {
            match Spec::find(name) {
                Some(spec) => describe(spec, replies),
                None => replies.nil(),
            }
        }
    } else if is("docs") {
        let asked = |spec: &&Spec| {
            let is = |name: &&[u8]| name.eq_ignore_ascii_case(spec.name.as_bytes());
            names.is_empty() || names.iter().any(is)
        };
        replies.map(ALL.iter().filter(asked).count());
        ALL.iter().filter(asked).for_each(|spec| document(spec, replies));
    } else if is("help") {
        help("COMMAND", &COMMAND_SUBCOMMANDS, replies);
    } else if is("count") || is("list") {
        return Err(RequestError::invalid("syntax error"));
    } else {
        return Err(unknown_subcommand("COMMAND", subcommand));
    }
    Ok(())
}

/// Describes a command for cluster clients: the number of arguments and the position of the key.
fn describe(spec: &Spec, replies: &mut Replies<'_>) {
    replies.array(10);
    replies.bulk(spec.name);
    replies.number(spec.arity);
    let flags = spec.flags();
    replies.set(flags.len());
    flags.iter().for_each(|flag| replies.simple(flag));
    replies.number(spec.key);
    replies.number(spec.key);
    replies.number(i64::from(spec.key > 0));
    let categories: &[&str] = match spec.group() {
        "module" => &["@write", "@fast"],
        "transactions" => &["@fast", "@transaction"],
        _ => &["@connection"],
    };
    replies.set(categories.len());
    categories.iter().for_each(|category| replies.simple(category));
    // Tips, key specifications and subcommands, which are empty.
    (0..3).for_each(|_| replies.set(0));
}

fn document(spec: &Spec, replies: &mut Replies<'_>) {
    replies.bulk(spec.name);
    replies.map(3);
    let lines = [("summary", spec.summary), ("since", "0.1.0"), ("group", spec.group())];
    for (name, value) in lines {
        replies.bulk(name);
        replies.bulk(value);
    }
}
