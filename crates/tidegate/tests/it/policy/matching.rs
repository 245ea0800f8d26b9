//! The requests that conditions match.

use super::{TestRequest, config};

/// A condition in YAML, requests that it matches, and requests that it does not.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

const CONDITIONS: &[Row] = &[
    // A path has many spellings, which are normalized before they are matched.
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
    // Spellings that only some servers treat as `/login`: path parameters and backslashes.
    (
        "path: /login",
        &[
            "/login;jsessionid=1",
            "/login;",
            "/login%3Bx",
            "/login%3bx=1;y",
            "/;x/login",
            "/.;/login",
            "/a/..;/login",
            "/a/..;x=1/login",
            "/a/..%3B/login",
            "/a/%2e%2e;/login",
            "/a;b/..;c/login;d",
            "/a\\..\\login",
            "/a%5C..%5Clogin",
            "/a%5c..%5clogin",
            "/\\login",
            "/a\\..;x\\login",
            // For servers that drop parameters but do not split at `\`.
            "/login;\\..\\x",
        ],
        &[
            "/login/;x",
            "/login;x/",
            "/login/.;x",
            "/login\\",
            "/login%2e",
            "/login%253Bx",
            "/a%255C..%255Clogin",
            "/Login;x",
            "/login%2F;x",
            "/login%00;x",
            "/x;/login",
            // Overlong UTF-8 for `..` and `/`, which no server in use decodes.
            "/a/%c0%ae%c0%ae/login",
            "/a/..%c0%aflogin",
        ],
    ),
    // A request matches a path prefix if some server would serve it below that path.
    (
        "path: '/api/**'",
        &[
            "/api;v=1/x",
            "/api/..;/x",
            "/api/a\\..\\..\\x",
            "/api/..%5Cx",
            "/x/..;/api/y",
            "/api\\..;\\x",
        ],
        &["/api/../x;y", "/x;/api/y"],
    ),
    ("path: '/*/edit'", &["/a;v=2/edit", "/x\\edit", "/a/edit;b"], &["/a/b;/edit"]),
    ("path: '/m;v=1/x'", &["/m;v=1/x", "/m%3Bv=1/x"], &["/m/x", "/m;v=2/x"]),
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
    // All conditions must match.
    ("{ method: POST, path: /login }", &["POST /login"], &["GET /login", "POST /x"]),
];

#[test]
fn conditions_match_as_tabulated() {
    for (condition, is_concurrency, fails) in CONDITIONS {
        let condition = match condition.starts_with('{') {
            true => (*condition).to_owned(),
            false => format!("{{ {} }}", quoted_name(condition)),
        };
        let policy = format!("{{ name: p, key: all, limits: 1 per 1s, match: {condition} }}");
        let config = config(&format!("policies: [{policy}]"));
        let selected = |words: &str| {
            let request = TestRequest::new(words);
            config.policies.select(&request.attributes()).expect("no cost").len()
        };
        for words in *is_concurrency {
            assert_eq!(selected(words), 1, "{condition} holds for {words}");
        }
        for words in *fails {
            assert_eq!(selected(words), 0, "{condition} does not hold for {words}");
        }
    }
}

/// With `path_variants: keep`, `;` and `\` are ordinary characters.
#[test]
fn path_variants_can_be_counted_separately() {
    let policy = "{ name: p, key: '{path}', limits: 1 per 1s, match: { path: ['/login', '/a*'] } }";
    let config = config(&format!("path_variants: keep\npolicies: [{policy}]"));
    let key = |words: &str| {
        let request = TestRequest::new(words);
        let selected = config.policies.select(&request.attributes()).expect("no cost");
        selected.first().map(|one| one.key.to_string())
    };
    let rows = [
        ("/login", Some("/login")),
        ("//login", Some("/login")),
        ("/login;x", None),
        ("/b/..;/login", None),
        ("/b\\..\\login", None),
        ("/a;x%3By", Some("/a;x;y")),
        ("/a\\b", Some("/a%5Cb")),
        ("/a%5cb", Some("/a%5Cb")),
    ];
    for (words, expected) in rows {
        assert_eq!(key(words).as_deref(), expected, "{words}");
    }
}

/// A path variant that the application may not recognise does not exempt a request.
#[test]
fn request_is_exempt_only_if_every_path_reading_is() {
    let exempt = "exempt: { path: ['/health', '/live*'] }";
    let policy = format!("{{ name: p, key: '{{path}}', limits: 1 per 1s, {exempt} }}");
    let config = config(&format!("policies: [{policy}]"));
    let rows = [
        ("/health", true),
        ("/a/../health", true),
        ("/live;x", true),
        ("/health;x", false),
        ("/api/..;/health", false),
        ("/api/..%5Chealth", false),
        ("/health/..;/api", false),
    ];
    for (words, exempt) in rows {
        let request = TestRequest::new(words);
        let selected = config.policies.select(&request.attributes()).expect("no cost");
        assert_eq!(selected.is_empty(), exempt, "{words}");
    }
}

/// An override of a path also applies to the variants of that path.
#[test]
fn overrides_hold_for_path_variants() {
    let over = "overrides: [{ when: { path: '/login' }, limits: 5 per 1m }]";
    let config =
        config(&format!("policies: [{{ name: p, key: '{{path}}', limits: 9 per 1m, {over} }}]"));
    for (words, variant) in [("/login", 1), ("/login;x", 1), ("/a\\..\\login", 1), ("/x;y", 0)] {
        let request = TestRequest::new(words);
        let selected = config.policies.select(&request.attributes()).expect("no cost");
        assert_eq!(selected[0].variant, variant, "{words}");
    }
}

/// Servers that drop parameters before they decode treat `%3B` as an ordinary character.
#[test]
fn encoded_semicolons_are_read_as_text_and_as_parameters() {
    let config =
        config("policies: [{ name: p, key: all, limits: 9 per 1m, match: { path: /v1/login } }]");
    for words in
        ["/v1/%3B/../login;1", "/v1/.%3B/../login;1", "/v1/..%3B/../login;1", "/v1/login%3b1"]
    {
        let request = TestRequest::new(words);
        let selected = config.policies.select(&request.attributes()).expect("no cost");
        assert_eq!(selected.len(), 1, "{words}");
    }
}

/// Regression: a backslash inside a parameter made a new key for each request.
#[test]
fn paths_with_several_merged_readings_share_a_key() {
    let config =
        config("policies: [{ name: p, key: '{path}', limits: 9 per 1m, match: { path: /login } }]");
    let key = |words: String| {
        let request = TestRequest::new(&words);
        let selected = config.policies.select(&request.attributes()).expect("no cost");
        assert_eq!(selected.len(), 1, "{words}");
        selected[0].key.to_string()
    };
    for n in 0..3 {
        assert_eq!(key(format!("/login;{n}")), "/login");
        for words in
            [format!("/login;%5C{n}"), format!("/login;\\{n}"), format!("/{n};\\..\\login")]
        {
            assert_eq!(key(words), "/(ambiguous)");
        }
    }
}

/// A path variant that the application does not recognise must not turn a limit off.
#[test]
fn overrides_that_enforce_nothing_hold_for_every_reading() {
    for mode in ["off", "observe"] {
        let over = format!("overrides: [{{ when: {{ path: '/bulk/**' }}, mode: {mode} }}]");
        let config =
            config(&format!("policies: [{{ name: p, key: all, limits: 9 per 1m, {over} }}]"));
        for (words, is_enforced) in
            [("/bulk/x", false), ("/bulk/..;/login", true), ("/login", true)]
        {
            let request = TestRequest::new(words);
            let selected = config.policies.select(&request.attributes()).expect("no cost");
            let enforced =
                selected.iter().any(|one| one.mode == tidegate::unstable::policy::Mode::Enforce);
            assert_eq!(enforced, is_enforced, "{mode}: {words}");
        }
    }
}

/// Converts `header:x: y` to `"header:x": y`.
fn quoted_name(condition: &str) -> String {
    let (name, value) = condition.split_once(": ").expect("a condition");
    format!("\"{name}\": {value}")
}

/// Patterns of many policies are compiled together. Each must match only its own policy.
#[test]
fn patterns_of_many_policies_do_not_mix() {
    let policies: Vec<String> = (0..300)
        .map(|n| format!("{{ name: p{n}, key: all, limits: 1 per 1s, match: {{ path: [/a{n}, '/b{n}/*', '/{{c,d}}{n}'], host: 'h{n}.*' }} }}"))
        .collect();
    let config = config(&format!("policies: [{}]", policies.join(", ")));
    for n in [0, 1, 17, 299] {
        for path in [format!("/a{n}"), format!("/b{n}/x"), format!("/d{n}")] {
            let request = TestRequest::new(&format!("{path} host=h{n}.x"));
            let selected = config.policies.select(&request.attributes()).expect("selected");
            let names: Vec<&str> = selected.iter().map(|one| one.policy.name()).collect();
            assert_eq!(names, [format!("p{n}")], "{path}");
        }
    }
    let mixed = TestRequest::new("/a1 host=h2.x");
    assert!(config.policies.select(&mixed.attributes()).expect("selected").is_empty());
}

#[test]
fn condition_with_many_networks_matches_each_of_them() {
    // 1000 networks: every other /24 of 10.0.0.0/13, and one that overlaps the first of them.
    let networks: Vec<String> = (0..999_u32)
        .map(|n| format!("10.{}.{}.0/24", n >> 7, (n << 1) & 255))
        .chain(["10.0.0.128/25".to_owned()])
        .collect();
    let text = format!(
        "policies: [{{ name: p, match: {{ client_ip: [{}] }}, key: all, limits: 1 per 1s }}]",
        networks.join(", ")
    );
    let config = config(&text);
    let matches = |ip: String| {
        let request = TestRequest::new(&format!("ip={ip}"));
        !config.policies.select(&request.attributes()).expect("no cost").is_empty()
    };
    for n in 0..1998_u32 {
        let (high, low) = (n >> 8, n & 255);
        for host in [0, 1, 255] {
            let expected = n % 2 == 0;
            assert_eq!(matches(format!("10.{high}.{low}.{host}")), expected);
            assert_eq!(matches(format!("::ffff:10.{high}.{low}.{host}")), expected);
        }
    }
    assert!(!matches("9.255.255.255".into()) && !matches("2001:db8::1".into()));
}
