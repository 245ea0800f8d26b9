//! Lines as servers and load balancers write them: times, clients, templates, and what is skipped.

use serde_json::Value;

use super::replay;
use crate::cli_harness::Files;

const NGINX: &str = "\
203.0.113.7 - - [17/Nov/2025:10:00:00 +0000] \"GET /a?x=1 HTTP/1.1\" 200 612 \"-\" \"curl/8.5\" 0.004
203.0.113.7 - - [17/Nov/2025:10:00:01 +0000] \"GET /a HTTP/1.1\" 200 612 \"-\" \"curl/8.5\" rt=0.012 uct=\"0.001\"
203.0.113.8 - - [17/Nov/2025:10:00:01 +0000] \"\\x16\\x03\\x01\" 400 157 \"-\" \"-\" 0.000
";

const ENVOY: &str = "\
[2016-04-15T20:17:00.310Z] \"POST /api/v1/locations?x=1 HTTP/2\" 204 - 154 0 226 100 \"198.51.100.9, 203.0.113.7\" \"nsq2http\" \"cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2\" \"locations\" \"tcp://10.0.2.1:80\"
[2016-04-15T20:17:01.000Z] \"GET / HTTP/1.1\" 503 UF,URX 0 91 4 - \"203.0.113.7\" \"a \"quoted\" agent\" \"id\" \"example.com\" \"-\"
[2016-04-15T20:17:01.310Z] \"GET / HTTP/1.1\" 200 - 0 91 4 - \"-\" \"-\" \"id\" \"example.com\" \"-\"
";

/// The examples of the AWS documentation, of two versions, and an IPv6 client.
const ALB: &str = "\
http 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.000 0.001 0.000 200 200 34 366 \"GET http://www.example.com:80/a?b=1 HTTP/1.1\" \"curl/7.46.0\" - - arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 \"Root=1-58337262-36d228ad5d99923122bbe354\" \"-\" \"-\" 0 2018-07-02T22:22:48.364000Z \"forward\" \"-\" \"-\" \"10.0.0.1:80\" \"200\" \"-\" \"-\"
h2 2018-07-02T22:23:00.286641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2818 - -1 -1 -1 502 - 34 366 \"GET https://www.example.com:443/ HTTP/2.0\" \"curl/7.46.0\"
wss 2018-07-02T22:23:00.386641Z app/my-loadbalancer/50dc6c495c0c9188 [2001:db8::1]:443 10.0.0.1:80 0 0 0 101 101 218 586 \"GET https://10.0.0.30:443/ HTTP/1.1\" \"-\" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2
";

const CLOUDFRONT: &str = "\
#Version: 1.0
#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query
2019-12-04\t21:02:31\tLAX1\t392\t192.0.2.100\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200\t-\tMozilla/5.0%20(X11)\tq=1&r
2019-12-04\t21:02:31\tLAX1\t392\t192.0.2.100\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200\t-\tMozilla/5.0%20(X11)\t-
#Version: 1.0
#Fields: time date c-ip
21:02:32\t2019-12-04\t2001:db8::1
";

/// A log, its format, its first and last times, its keys, and the lines that are skipped.
#[test]
fn detects_logs_of_servers_and_load_balancers() {
    for (log, format, times, keys, skipped) in [
        (NGINX, "combined", (1_763_373_600_000_000, 1_000_000), 2, 0),
        (ENVOY, "envoy", (1_460_751_420_310_000, 690_000), 1, 1),
        (ALB, "alb", (1_530_570_180_186_641, 200_000), 2, 0),
        (CLOUDFRONT, "w3c", (1_575_493_351_000_000, 1_000_000), 2, 0),
    ] {
        let json = replay(log, &["--limit", "10 per 10s", "--json"]).succeeded().json();
        assert_eq!(json["files"][0]["format"], format);
        let found = [&json["from_us"], &json["span_us"]].map(|time| time.as_u64().expect("a time"));
        assert_eq!(found, <[u64; 2]>::from(times), "{format}");
        assert_eq!(json["keys"], keys, "{format}: a client is one key on all of its connections");
        assert_eq!(json["skipped"]["count"], skipped, "{format}: {}", json["skipped"]);
        assert_eq!(json["hints"], Value::Array(Vec::new()), "{format}");
        // The format can also be given.
        let alias = match format {
            "combined" => "nginx",
            "w3c" => "cloudfront",
            other => other,
        };
        let args = ["--limit", "10 per 10s", "--json", "--format", alias];
        assert_eq!(replay(log, &args).succeeded().json()["keys"], keys, "{alias}");
    }
}

#[test]
fn templates_read_fields_of_logs() {
    for (log, template, key) in [
        (
            ENVOY,
            "{client_ip} {method} {path} {query:x} {header:user-agent} {host}",
            "11#203.0.113.7 4#POST 17#/api/v1/locations 1#1 8#nsq2http 9#locations",
        ),
        (ENVOY, "{header:x-forwarded-for}", "198.51.100.9, 203.0.113.7"),
        (
            ALB,
            "{client_ip} {method} {path} {query:b} {host}",
            "14#192.168.131.39 3#GET 2#/a 1#1 15#www.example.com",
        ),
        (
            CLOUDFRONT,
            "{client_ip} {method} {path} {query:q} {host}",
            "11#192.0.2.100 3#GET 11#/index.html 1#1 29#d111111abcdef8.cloudfront.net",
        ),
        (CLOUDFRONT, "{header:user-agent}", "Mozilla/5.0%20(X11)"),
        (ALB, "elb", "app/my-loadbalancer/50dc6c495c0c9188"),
    ] {
        let args = ["--limit", "0 per 10s", "--key", template, "--json", "--top", "1000"];
        let json = replay(log, &args).succeeded().json();
        let keys = json["algorithms"][0]["most_denied"].as_array().expect("keys");
        let keys: Vec<_> = keys.iter().filter_map(|one| one["key"].as_str()).collect();
        assert!(keys.contains(&key), "{template}: {key} is not in {keys:?}");
    }
}

/// A named key was taken as it is: each connection was a separate key, and so was each list.
#[test]
fn named_addresses_are_one_key_on_all_connections() {
    let csv = |name: &str| {
        format!("ts,{name}\n1700000000,192.0.2.1:5\n1700000001,192.0.2.1:6\n1700000002,192.0.2.1\n")
    };
    let hops = "{\"ts\":1700000000,\"x_forwarded_for\":\"198.51.100.9, 203.0.113.7\"}\n\
                {\"ts\":1700000001,\"x_forwarded_for\":\"203.0.113.7:80\"}\n";
    let nginx = "10.0.0.1 - - [17/Nov/2025:10:00:00 +0000] \"GET /\" 200 5 \"-\" \"a\" \"198.51.100.9, 203.0.113.7\"\n\
                 10.0.0.1 - - [17/Nov/2025:10:00:01 +0000] \"GET /\" 200 5 \"-\" \"a\" \"203.0.113.7\"\n";
    let rows: [(&str, &[&str], &[&str]); 11] = [
        (ALB, &["--key", "client_ip"], &["192.168.131.39", "2001:db8::1"]),
        (ENVOY, &["--key", "x-forwarded-for"], &["203.0.113.7"]),
        (&csv("client_ip"), &["--key", "client_ip"], &["192.0.2.1"]),
        (&csv("remote_addr"), &["--key", "remote_addr"], &["192.0.2.1"]),
        (&csv("remote_addr"), &["--field", "key=remote_addr"], &["192.0.2.1"]),
        (&csv("peer"), &["--field", "client_ip=peer", "--key", "peer"], &["192.0.2.1"]),
        (hops, &["--key", "x_forwarded_for"], &["203.0.113.7"]),
        (nginx, &["--key", "forwarded"], &["203.0.113.7"]),
        ("ts,client\n1700000000,\"Acme, Inc\"\n", &["--key", "client"], &["Acme, Inc"]),
        // Other fields can hold anything.
        (&csv("peer"), &["--key", "peer"], &["192.0.2.1", "192.0.2.1:5", "192.0.2.1:6"]),
        (&csv("key"), &["--key", "key"], &["192.0.2.1", "192.0.2.1:5", "192.0.2.1:6"]),
    ];
    for (log, args, expected) in rows {
        let args = [&["--limit", "0 per 10s", "--json"], args].concat();
        let json = replay(log, &args).succeeded().json();
        let keys = json["algorithms"][0]["most_denied"].as_array().expect("keys");
        let mut keys: Vec<_> = keys.iter().filter_map(|one| one["key"].as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected, "{args:?}");
    }
}

/// `://` in a path or query was taken for the end of a scheme: such requests had a wrong path and
/// host in every format.
#[test]
fn targets_are_urls_only_if_they_begin_with_a_scheme() {
    let json = |field: &str, value: &str| {
        format!("{{\"ts\":1700000000,\"host\":\"h\",\"{field}\":\"{value}\"}}\n")
    };
    // The target, its path as `--key path`, and path and query in a template, which policies
    // normalise.
    for (target, path, in_template) in [
        ("/login?next=https://x/y", "/login", "6#/login 11#https://x/y"),
        ("/p/https://x", "/p/https://x", "11#/p/https:/x 1#\\x00"),
        ("/://x", "/://x", "4#/:/x 1#\\x00"),
        ("http://h/login?next=/", "/login", "6#/login 1#/"),
        ("http://h", "/", "1#/ 1#\\x00"),
    ] {
        let clf =
            format!("h:80 a - - [17/Nov/2025:10:00:00 +0000] \"GET {target} HTTP/1.1\" 200 5");
        let envoy = format!(
            "[2016-04-15T20:17:00.310Z] \"GET {target} HTTP/2\" 200 - 0 5 3 2 \"192.0.2.1\" \"a\" \
             \"id\" \"h\" \"10.0.0.1:80\"\n"
        );
        for (format, line) in [
            ("clf", format!("{clf}\n")),
            ("combined", format!("{clf} \"-\" \"curl/8.5\"\n")),
            ("envoy", envoy),
            ("jsonl", json("path", target)),
            ("jsonl", json("request_uri", target)),
            ("jsonl", json("request", &format!("GET {target} HTTP/1.1"))),
        ] {
            let key = |template: &str| {
                let args = ["--limit", "0 per 10s", "--key", template, "--json"];
                let json = replay(&line, &args).succeeded().json();
                assert_eq!(json["files"][0]["format"], format, "{line}");
                json["algorithms"][0]["most_denied"][0]["key"].as_str().map(str::to_string)
            };
            let found = key("{host} {path} {query:next}");
            assert_eq!(found, Some(format!("1#h {in_template}")), "{line}");
            if ["clf", "combined"].contains(&format) {
                assert_eq!(key("path").as_deref(), Some(path), "{line}");
            }
        }
    }
}

#[test]
fn key_all_counts_all_requests_together() {
    let json_lines = "{\"ts\":1700000000.5,\"a\":1}\n{\"ts\":1700000000.6,\"b\":1}\n";
    for (log, events) in [
        (NGINX, 3),
        (ENVOY, 3),
        (CLOUDFRONT, 3),
        (json_lines, 2),
        ("1,a\n2,b\n", 2),
        ("ts\n1\n2\n", 2),
    ] {
        let args = ["--limit", "1 per 10s", "--key", "all", "--json"];
        let json = replay(log, &args).succeeded().json();
        assert_eq!((&json["keys"], &json["events"]), (&1.into(), &events.into()), "{log}");
        assert_eq!(json["algorithms"][0]["most_denied"][0]["key"], "all", "{log}");
    }
}

/// Columns, options, and the error, which names the field or option at fault.
#[test]
fn errors_name_the_wrong_field() {
    for (trace, args, message) in [
        (
            "ts,key\n1700000000,a\n",
            &["--field", "cost=price"][..],
            "error: -: --field cost=price: lines of format csv have no such field (its fields: ts, key)\n",
        ),
        (
            "ts,key\n1700000000,a\n",
            &["--field", "time=when"],
            "error: -: --field time=when: lines of format csv have no such field",
        ),
        (
            ALB,
            &["--key", "planet"],
            "error: -: --key planet: lines of format alb have no such field (its fields: type, time, elb,",
        ),
        // The error did not say that a template has what the columns do not name.
        (
            ALB,
            &["--key", "path"],
            "error: -: --key path: lines of format alb have no such field; write --key \"{path}\" (its fields: type,",
        ),
        (ALB, &["--key", "header:user-agent"], "; write --key \"{header:user-agent}\" (its"),
        (CLOUDFRONT, &["--key", "client_ip"], "; write --key \"{client_ip}\" (its fields: date,"),
        (NGINX, &["--key", "query:x"], "; write --key \"{query:x}\" (its fields: host,"),
        (
            ALB,
            &["--key", "cookie:x"],
            "--key cookie:x: lines of format alb have no such field (its",
        ),
        (
            "ts,path\n1,b\n",
            &["--key", "path", "--field", "cost=price"],
            "--field cost=price: lines of format csv have no such field (its fields: ts, path)\n",
        ),
        ("ts,a\n1,b\n", &["--key", "path"], "format csv have no such field (its fields: ts, a)\n"),
        // The error listed fields that only other lines have, such as the one that was not found.
        (
            "h - - [17/Nov/2025:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n",
            &["--key", "agent"],
            "error: -: --key agent: lines of format clf have no such field (its fields: host, user, method, path, status)\n",
        ),
        (
            "h - - [17/Nov/2025:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"a\"\n",
            &["--key", "vhost"],
            "error: -: --key vhost: lines of format combined have no such field (its fields: host, user, agent, referer, method, path, status, forwarded)\n",
        ),
        (
            "{\"ts\":1700000000,\"user\":\"a\"}\n",
            &["--key", "user_id"],
            "error: no request to replay: 1 line skipped, the first -:1: no key: field `user_id` is missing or empty (its fields: ts, user)\n",
        ),
        (
            "{\"at\":1700000000,\"key\":\"a\"}\n",
            &["--field", "time=att"],
            "-:1: no time: field `att` is missing or empty (its fields: at, key)\n",
        ),
        // The first lines have the field, so its name is right.
        ("{\"ts\":1700000000,\"user\":\"\"}\n", &["--key", "user"], "-:1: no key\n"),
        // The error was "no key".
        (
            NGINX,
            &["--key", "forwarded"],
            "error: no request to replay: 3 lines skipped, the first -:1: no key: field `forwarded` is missing or empty\n",
        ),
        (
            "h - - [17/Nov/2025:10:00:00 +0000] \"\\x16\" 400 5 \"-\" \"\"\n",
            &["--key", "method"],
            "-:1: no key: field `method` is missing or empty\n",
        ),
        (
            "h - - [17/Nov/2025:10:00:00 +0000] \"\\x16\" 400 5 \"-\" \"\"\n",
            &["--key", "user_agent"],
            "-:1: no key: field `user_agent` is missing or empty\n",
        ),
        (
            "date,key\n14.11.2023,a\n",
            &[],
            "-:2: field `date` is `14.11.2023`: not a number or a time such as 2023-11-14T22:13:20Z\n",
        ),
        (
            "date,key\n2023-11-14,a\n",
            &[],
            "-:2: field `date` is `2023-11-14`: a date without a time of day; name the field of the time of day with --field time=NAME\n",
        ),
        (
            "time,key\n22:13:20,a\n",
            &[],
            "-:2: field `time` is `22:13:20`: a time of day without a date; name the field of the date with --field date=NAME\n",
        ),
        (
            "ts,key,cost\n1700000000,a,much\n",
            &[],
            "-:2: field `cost` is `much`: the cost is not a whole number\n",
        ),
        ("#Version: 1.0\nx y\n", &["--format", "w3c"], "error: -: no `#Fields:` line"),
        (
            "#Fields: c-ip sc-status\n192.0.2.1 200\n",
            &[],
            "no field of format w3c is known to be the time; name it with --field time=NAME (its fields: c-ip, sc-status)\n",
        ),
        ("alice,1700000000000000\n", &[], "or add a first line with the names of the columns"),
        ("1700000000.5,alice\n", &[], "set --time-unit (s for seconds and dates, or ms or ns)"),
        (
            "1700000000.5,alice\n",
            &["--format", "csv"],
            "(set --time-unit, or add a line with the names of the columns)",
        ),
    ] {
        replay(trace, &[&["--limit", "10 per 10s"], args].concat()).failed(1, &[message]);
    }
}

/// Requests without a user were one user named `-`, without a hint.
#[test]
fn hints_at_requests_without_a_key() {
    let line = |user: &str| {
        format!("192.0.2.1 - {user} [14/Nov/2023:22:13:20 +0000] \"GET / HTTP/1.1\" 200 5\n")
    };
    let hints = |trace: String, key: &str| {
        let run = replay(trace, &["--limit", "9 per 1m", "--key", key, "--json"]).succeeded();
        run.json()["hints"].to_string()
    };
    let missing = "the key of 2 requests is `-`, a missing value; such requests share one key";
    let trace = [line("-"), line("alice"), line("-")].concat();
    assert!(hints(trace.clone(), "user").contains(missing));
    assert!(!hints(trace, "host").contains("share one key"));
}

#[test]
fn hints_at_whole_seconds_under_short_windows() {
    let hint = |unit: &str, limit: &str, step: u64| {
        let lines = (0..20).map(|n| format!("{},a\n", 1_700_000_000 + n * step));
        let trace = lines.collect::<String>();
        let args = ["--limit", limit, "--time-unit", unit, "--json"];
        let hints = replay(trace, &args).succeeded().json()["hints"].clone();
        let hints = hints.as_array().expect("hints").clone();
        hints.iter().any(|hint| hint.as_str().is_some_and(|hint| hint.contains("whole seconds")))
    };
    assert!(hint("s", "5 per 1s", 1));
    assert!(!hint("s", "5 per 10s", 1), "a second is a tenth of the window");
    assert!(!hint("ms", "5 per 1s", 1), "the times have fractions");
}

#[test]
fn policies_decide_logs_of_load_balancers() {
    let files = Files::new("alb-policies");
    let config = "policies: [{name: p, key: \"{client_ip}\", match: {host: www.example.com}, limits: [\"1 per 1m\"]}]";
    let config = files.write("tidegate.yaml", config);
    let run = replay(ALB, &["--config", &config, "--decisions", "-"]).succeeded();
    assert_eq!(run.stdout, "101", "one client on two ports; the third line has another host");
}
