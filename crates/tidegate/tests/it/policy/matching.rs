//! Which requests a condition holds for.

use super::{Asked, config};

/// A condition in YAML, requests it holds for, requests it does not.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

const CONDITIONS: &[Row] = &[
    // One path has many spellings; the policy sees one.
    (
        "path: /login",
        &[
            "/login",
            "//login",
            "/%6Cogin",
            "/%6cogin",
            "/a/../login",
            "/./login",
            "/login/.././login",
            "/../login",
            "/%2e/login",
            "/a/%2E%2E/login",
        ],
        &["/", "/login/", "/Login", "/loginx", "/login%2F", "/login%00", "/%256Cogin", ""],
    ),
    (
        "path: '/v1/**'",
        &["/v1/", "/v1/a", "/v1/a/b", "/V/../v1/x"],
        &["/v1", "/v10/a", "/v2/../v1", "/x/v1/a"],
    ),
    ("path: '/v1/*'", &["/v1/a", "/v1/a%2Fb", "/v1/"], &["/v1", "/v1/a/b"]),
    ("path: '/*/x'", &["/a/x"], &["/a/b/x", "/x"]),
    ("path: '**/health'", &["/health", "/a/health", "/a/b/health"], &["/healthz", "/health/"]),
    ("path: '/a/**/b'", &["/a/b", "/a/x/b", "/a/x/y/b"], &["/a/x", "/ab"]),
    ("path: '**'", &["/", "/a/b"], &["GET"]),
    ("path: '/{login,signup}'", &["/login", "/signup"], &["/logout"]),
    ("path: '/login{,/}'", &["/login", "/login/"], &["/login/x"]),
    ("path: '/item/[0-9]?'", &["/item/42", "/item/4x"], &["/item/4", "/item/x4", "/item/4/"]),
    ("path: [/a, /b]", &["/a", "/b"], &["/c"]),
    ("path: '/caf\u{e9} bar'", &["/caf%C3%A9%20bar", "/caf%c3%a9%20bar"], &["/cafe%20bar"]),
    ("path: '/%6Cogin'", &["/login"], &["/%256Cogin"]),
    ("path: '/a%2Fb'", &["/a%2Fb", "/a%2fb"], &["/a/b"]),
    ("path: '/a%2A'", &["/a*", "/a%2A"], &["/ab"]),
    ("path: '/\\{x\\}'", &["/%7Bx%7D", "/{x}"], &["/x"]),
    ("path: '/@me:x'", &["/@me:x", "/%40me%3Ax"], &["/me"]),
    ("method: POST", &["POST", "post"], &["GET", "/x"]),
    ("methods: [get, PUT]", &["GET", "PUT"], &["POST"]),
    ("method: '*'", &["GET"], &["/x"]),
    (
        "host: example.com",
        &["host=example.com", "host=EXAMPLE.com:443", "host=example.com."],
        &["host=a.example.com", "host=example.com.evil", "GET"],
    ),
    (
        "host: '*.example.com'",
        &["host=a.example.com", "host=a.b.example.com:80"],
        &["host=example.com", "host=aexample.com"],
    ),
    ("host: '[::1]'", &["host=[::1]:8080", "host=[::1]"], &["host=1", "host=::1]"]),
    (
        "client_ip: 10.0.0.0/8",
        &["ip=10.255.0.1", "ip=::ffff:10.0.0.1"],
        &["ip=11.0.0.1", "ip=2001:db8::1", "GET"],
    ),
    (
        "client_ip: [192.0.2.7, '2001:db8::/32']",
        &["ip=192.0.2.7", "ip=2001:db8:ffff::1"],
        &["ip=192.0.2.8", "ip=2001:db9::"],
    ),
    (
        "header:x-org: [acme, bigco]",
        &["x-org:acme", "X-Org:bigco"],
        &["x-org:acmes", "x-org:Acme", "x-org:newco", "GET"],
    ),
    // The first value counts, in conditions as in keys.
    ("header:x-org: acme", &["x-org:acme x-org:evil"], &["x-org:evil x-org:acme"]),
    ("header:x-org: '*'", &["x-org:anything"], &["x-org:", "GET"]),
    ("header:x-version: 2", &["x-version:2"], &["x-version:2.0"]),
    ("headers: { x-a: 1, x-b: [2, 3] }", &["x-a:1 x-b:3"], &["x-a:1", "x-b:3", "x-a:1 x-b:4"]),
    (
        "query:debug: 'true'",
        &["/?debug=true", "/?a=1&debug=%74rue"],
        &["/?debug=false", "/", "/?xdebug=true"],
    ),
    ("query:q: 'a b'", &["/?q=a+b", "/?q=a%20b"], &["/?q=a%2Bb"]),
    ("query:flag: '*'", &["/?flag=1"], &["/?flag", "/?flag="]),
    ("cookie:beta: yes", &["cookie:a=b;beta=yes"], &["cookie:a=beta;xbeta=yes", "beta:yes"]),
    (
        "descriptor:tenant: acme",
        &["@tenant=acme"],
        &["@tenant=bigco", "@other=acme", "tenant:acme"],
    ),
    // All must hold.
    ("{ method: POST, path: /login }", &["POST /login"], &["GET /login", "POST /x"]),
];

#[test]
fn conditions() {
    for (condition, holds, fails) in CONDITIONS {
        let condition = match condition.starts_with('{') {
            true => (*condition).to_owned(),
            false => format!("{{ {} }}", quoted_name(condition)),
        };
        let policy = format!("{{ name: p, key: all, limits: 1 per 1s, match: {condition} }}");
        let config = config(&format!("policies: [{policy}]"));
        let selected = |words: &str| {
            let asked = Asked::new(words);
            config.policies.select(&asked.attributes()).expect("no cost to read").len()
        };
        for words in *holds {
            assert_eq!(selected(words), 1, "{condition} holds for {words}");
        }
        for words in *fails {
            assert_eq!(selected(words), 0, "{condition} does not hold for {words}");
        }
    }
}

/// `header:x: y` as `"header:x": y`.
fn quoted_name(condition: &str) -> String {
    let (name, value) = condition.split_once(": ").expect("a condition");
    format!("\"{name}\": {value}")
}

/// Patterns of many policies run together; each must find its own.
#[test]
fn patterns_of_many_policies_do_not_mix() {
    let policies: Vec<String> = (0..300)
        .map(|n| format!("{{ name: p{n}, key: all, limits: 1 per 1s, match: {{ path: [/a{n}, '/b{n}/*', '/{{c,d}}{n}'], host: 'h{n}.*' }} }}"))
        .collect();
    let config = config(&format!("policies: [{}]", policies.join(", ")));
    for n in [0, 1, 17, 299] {
        for path in [format!("/a{n}"), format!("/b{n}/x"), format!("/d{n}")] {
            let asked = Asked::new(&format!("{path} host=h{n}.x"));
            let selected = config.policies.select(&asked.attributes()).expect("selected");
            let names: Vec<&str> = selected.iter().map(|one| one.policy.name()).collect();
            assert_eq!(names, [format!("p{n}")], "{path}");
        }
    }
    let mixed = Asked::new("/a1 host=h2.x");
    assert!(config.policies.select(&mixed.attributes()).expect("selected").is_empty());
}
