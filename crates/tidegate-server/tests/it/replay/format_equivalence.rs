//! One trace in every supported format: the decisions must be equal.

use std::fmt::Write as _;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::cli_harness::{Files, gzip, sha256, tidegate, tidegate_reading};

/// A time in microseconds and a key without spaces.
pub type Event = (u64, String);

/// Writes an event as a line.
type Line = fn(u64, &str) -> String;

/// A name, the header line if any, a function that formats a line, and the arguments.
const FORMS: &[(&str, &str, Line, &[&str])] = &[
    ("csv", "", |us, key| format!("{us},{key}"), &[]),
    ("csv, named", "time_us,key,cost\n", |us, key| format!("{us},{key},1"), &[]),
    ("csv, quoted", "", |us, key| format!("{us},\"{key}\""), &[]),
    (
        "csv, columns",
        "status,client_ip,ts\n",
        |us, key| format!("200,{key},{}.{:06}", us / 1_000_000, us % 1_000_000),
        &[],
    ),
    ("csv, seconds", "", |us, key| format!("{},{key}", decimal(us, 6)), &["--time-unit", "s"]),
    ("csv, dates", "date,key\n", |us, key| format!("{},{key}", iso(us)), &[]),
    (
        "csv, date and time in two columns, in another order",
        "Client IP;Time;Status;Date\n",
        |us, key| format!("{key};{};200;{}", clock(us), &iso(us)[..10]),
        &[],
    ),
    (
        "csv, date and time in columns that are named",
        "day_of,at,key\n",
        |us, key| format!("{},{},{key}", iso(us)[..10].replace('-', "/"), clock(us)),
        &["--field", "date=day_of,time=at"],
    ),
    ("tab-separated", "TIMESTAMP\tkey\n", |us, key| format!("{}\t{key}", iso(us)), &[]),
    ("jsonl", "", |us, key| format!("{{\"time_us\":{us},\"key\":\"{key}\"}}"), &[]),
    (
        "jsonl, seconds",
        "",
        |us, key| format!("{{\"x\":[1],\"ts\":{},\"remote_addr\":\"{key}\"}}", decimal(us, 6)),
        &[],
    ),
    (
        "jsonl, milliseconds",
        "",
        |us, key| format!("{{\"t\":{},\"u\":{{\"id\":\"{key}\"}}}}", decimal(us, 3)),
        &["--field", "time=t", "--key", "u.id"],
    ),
    (
        "jsonl, date and time",
        "",
        |us, key| {
            format!(
                "{{\"date\":\"{}\",\"time\":\"{}\",\"c-ip\":\"{key}\"}}",
                &iso(us)[..10],
                clock(us)
            )
        },
        &[],
    ),
    (
        "jsonl, RFC 3339",
        "",
        |us, key| format!("{{\"@timestamp\":\"{}\",\"client_ip\":\"{key}\"}}", iso(us)),
        &[],
    ),
    (
        "jsonl, a template",
        "",
        |us, key| format!("{{\"time_us\":{us},\"http_x_api_key\":\"{key}\"}}"),
        &["--key", "{header:x-api-key | client_ip}"],
    ),
    ("clf", "", |us, key| format!("{key} - - [{}] \"GET / HTTP/1.0\" 200 5", log(us)), &[]),
    (
        "clf, another zone",
        "",
        |us, key| {
            format!(
                "{key} - - [{}] \"GET /\" 200 -",
                log(us + 7_200_000_000).replace("+0000", "+0200")
            )
        },
        &[],
    ),
    (
        "combined",
        "",
        |us, key| format!("{key} - - [{}] \"GET / HTTP/1.0\" 200 5 \"-\" \"curl/8\"", log(us)),
        &[],
    ),
    (
        "nginx main",
        "",
        |us, key| {
            format!("10.0.0.1 - - [{}] \"GET /\" 200 5 \"-\" \"a\" \"{key}\" 0.01 .", log(us))
        },
        &["--key", "forwarded"],
    ),
    (
        "Apache with a virtual host",
        "",
        |us, key| format!("x.org:443 {key} - - [{}] \"GET /\" 200 5 \"-\" \"a\"", log(us)),
        &[],
    ),
    (
        "nginx over syslog",
        "",
        |us, key| {
            let day = 1 + us / 1_000_000 % 28;
            format!(
                "<190>Mar {day:2} {} web1 nginx: {key} - - [{}] \"GET /\" 200 5 \"-\" \"a\"",
                clock(us),
                log(us)
            )
        },
        &[],
    ),
    (
        "Apache over syslog, RFC 5424",
        "",
        |us, key| {
            let time = iso(us);
            format!("<190>1 {time} web1 httpd 12 - - {key} - a b [{}] \"GET /\" 200 5", log(us))
        },
        &[],
    ),
    (
        "a container of Compose",
        "",
        |us, key| format!("nginx-1  | {key} - - [{}] \"GET /\" 200 5 \"-\" \"a\"", log(us)),
        &[],
    ),
    (
        "Envoy",
        "",
        |us, key| {
            format!(
                "[{}] \"GET /a HTTP/1.1\" 200 - 0 5 3 2 \"192.0.2.1, {key}\" \"curl/8 \\\"x\\\"\" \
                 \"id\" \"example.com\" \"10.0.0.1:80\"",
                iso(us)
            )
        },
        &[],
    ),
    (
        "Envoy in Istio",
        "",
        |us, key| {
            format!(
                "[{}] \"GET /a HTTP/1.1\" 200 - via_upstream - \"-\" 0 5 3 2 \"-\" \"curl/8\" \"id\" \
                 \"example.com\" \"10.0.0.1:80\" outbound|80||a 10.0.0.2:1 10.0.0.3:80 {key} - default",
                iso(us)
            )
        },
        &[],
    ),
    (
        "ALB",
        "",
        |us, key| {
            format!(
                "https {} app/web/50dc6c495c0c9188 {key} 10.0.0.1:80 0.000 0.001 0.000 200 200 34 366 \
                 \"GET https://example.com:443/a HTTP/1.1\" \"curl/8 (x; y)\" ECDHE TLSv1.2 arn:x \
                 \"Root=1-58337262\" \"example.com\" \"arn:y\" 1 {} \"forward\" \"-\" \"-\" \"10.0.0.1:80\" \
                 \"200\" \"-\" \"-\" TID_1234",
                iso(us),
                iso(us)
            )
        },
        &[],
    ),
    (
        "CloudFront",
        "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host)\n",
        |us, key| {
            format!("{}\t{}\tLAX1\t2390282\t{key}\tGET\td1.example", &iso(us)[..10], clock(us))
        },
        &[],
    ),
    (
        "IIS",
        "#Software: Microsoft Internet Information Services 10.0\n#Fields: date time c-ip sc-status\n",
        |us, key| format!("{} {} {key} 200", &iso(us)[..10], clock(us)),
        &["--format", "iis"],
    ),
    (
        "combined, by user",
        "",
        |us, key| format!("10.0.0.1 - {key} [{}] \"GET /\" 200 5 \"-\" \"a\"", log(us)),
        &["--key", "{descriptor:user}"],
    ),
];

fn decimal(us: u64, places: u32) -> String {
    let scale = 10_u64.pow(places);
    format!("{}.{:0width$}", us / scale, us % scale, width = places as usize)
}

/// Converts days since 1970 to year, month and day, by counting.
fn date(mut days: u64) -> (u64, usize, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month, days + 1)
}

fn clock(us: u64) -> String {
    let second = us / 1_000_000 % 86_400;
    format!(
        "{:02}:{:02}:{:02}.{:06}",
        second / 3_600,
        second / 60 % 60,
        second % 60,
        us % 1_000_000
    )
}

fn iso(us: u64) -> String {
    let (year, month, day) = date(us / 86_400_000_000);
    format!("{year}-{:02}-{day:02}T{}Z", month + 1, clock(us))
}

fn log(us: u64) -> String {
    let (year, month, day) = date(us / 86_400_000_000);
    let name =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][month];
    format!("{day:02}/{name}/{year}:{} +0000", clock(us))
}

/// Compares the decisions on a trace with a digest, in every format.
pub fn check(events: &[Event], limit: &str, digest: &str) {
    for (name, head, line, args) in FORMS {
        let mut text = (*head).to_string();
        for (us, key) in events {
            writeln!(text, "{}", line(*us, key)).expect("memory");
        }
        let all = [&["replay", "-", "--limit", limit, "--decisions", "-"], *args].concat();
        let run = tidegate_reading(&all, text.as_bytes()).succeeded();
        assert!(!run.stderr.contains("skipped"), "{name}: {}", run.stderr);
        assert_eq!(sha256(&run.stdout), digest, "{name}");
    }
    check_containers(events, limit, digest);
}

/// The same bytes, compressed, and split into several files.
fn check_containers(events: &[Event], limit: &str, digest: &str) {
    let files = Files::new(&format!("containers-{}", events.len()));
    let parts: Vec<String> = events
        .chunks(events.len().div_ceil(3))
        .map(|part| part.iter().map(|(us, key)| format!("{us},{key}\n")).collect())
        .collect();
    let whole = parts.concat();
    let zstd = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    // Several frames, with a skippable one among them.
    let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    let frames = [&zstd(&parts[0])[..], &skipped, &zstd(&parts[1]), &zstd(&parts[2])].concat();
    let paths = [
        files.write("whole.gz", gzip(&whole)),
        files.write("whole.zst", zstd(&whole)),
        files.write("frames", frames),
    ];
    let part = |(index, text): (usize, &String)| match index {
        0 => files.write("part0.csv", text),
        1 => files.write("part1.csv.gz", gzip(text)),
        _ => files.write("part2.csv.zst", zstd(text)),
    };
    let parts: Vec<String> = parts.iter().enumerate().map(part).collect();
    let mut sets: Vec<Vec<&str>> = paths.iter().map(|path| vec![&**path]).collect();
    sets.push(vec![&parts[0], &parts[1], &parts[2]]);
    // If all times differ, the order of the files does not matter. For equal times the file named
    // first comes first.
    if events.is_sorted_by(|a, b| a.0 < b.0) {
        sets.push(vec![&parts[2], &parts[0], &parts[1]]);
    }
    for set in sets {
        let args = [&["replay"], &set[..], &["--limit", limit, "--decisions", "-"]].concat();
        let run = tidegate(&args).succeeded();
        assert_eq!(sha256(&run.stdout), digest, "{set:?}");
    }
}

#[test]
fn every_format_gives_the_same_result() {
    // Bursts of one key among requests of 50 keys, all at different times.
    let mut seed = 9_u64;
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let mut us = 1_700_000_000_000_000;
    let mut events = Vec::new();
    for _ in 0..1_500 {
        let key = format!("user{}", below(50));
        for _ in 0..=below(4) {
            us += 1 + below(40_000);
            events.push((us, key.clone()));
        }
    }
    let csv: String = events.iter().map(|(us, key)| format!("{us},{key}\n")).collect();
    let limit = "4 per 1s sliding-counter";
    let decisions = crate::cli_harness::decisions(&csv, &["--limit", limit]);
    assert!(decisions.contains('0') && decisions.contains('1'));
    let digest = sha256(&decisions);
    assert_eq!(digest, "7394dca5cd8270038d12e3cdc7693e845f902f0b995ee936d2336d75519d2171");
    check(&events, limit, &digest);
}

#[test]
fn merges_files_by_time() {
    let files = Files::new("merged");
    // (first file, second file, decisions under one per 10 ms in merged order)
    let rows = [
        ("1,a\n5,b\n9,a\n", "2,c\n3,a\n20,c\n", "110100"),
        ("10,a\n11,b\n", "1,x\n2,y\n", "1111"),
        // For equal times the file named first comes first. The second event of the key is denied.
        ("5,a\n", "5,a\n", "10"),
        // Events out of order within a file keep their order.
        ("5,a\n1,a\n", "3,b\n", "110"),
    ];
    for (index, (first, second, expected)) in rows.into_iter().enumerate() {
        let first = files.write(&format!("{index}-a.csv"), first);
        let second = files.write(&format!("{index}-b.csv"), second);
        let args =
            ["replay", &first, &second, "--limit", "1 per 10ms sliding-log", "--decisions", "-"];
        assert_eq!(tidegate(&args).succeeded().stdout, expected, "row {index}");
    }
}
