//! The examples in the documentation of envoyproxy/ratelimit, with the decisions that it documents.

use super::Fixture;

/// The steps: descriptors and the expected decision, or `+N` to advance the clock by N seconds.
type Steps = &'static [(&'static str, &'static str)];

struct Example {
    description: &'static str,
    config: &'static str,
    steps: Steps,
}

const EXAMPLES: &[Example] = &[
    Example {
        description: "one limit per value",
        config: "
domain: mongo
descriptors:
  - { key: database, value: users, rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: database, value: default, rate_limit: { unit: second, requests_per_unit: 1 } }
",
        steps: &[
            ("database=users", "OK 0:mongo.database_users+1"),
            ("database=users", "OK 0:mongo.database_users+0"),
            ("database=users", "OVER_LIMIT 0:mongo.database_users-0"),
            ("database=default", "OK 0:mongo.database_default+0"),
            ("database=orders", "OK"),
            ("+1", ""),
            ("database=users", "OK 0:mongo.database_users+1"),
        ],
    },
    Example {
        description: "nested, and two descriptors in one request: the fourth of three per minute is denied",
        config: "
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: to_number
    rate_limit: { unit: day, requests_per_unit: 100 }
",
        steps: &[
            (
                "message_type=marketing to_number=1; to_number=1",
                "OK 0:messaging.message_type_marketing.to_number+2 1:messaging.to_number+99",
            ),
            ("message_type=marketing to_number=1", "OK 0:messaging.message_type_marketing.to_number+1"),
            ("message_type=marketing to_number=1", "OK 0:messaging.message_type_marketing.to_number+0"),
            (
                "message_type=marketing to_number=1; to_number=1",
                "OVER_LIMIT 0:messaging.message_type_marketing.to_number-0 1:messaging.to_number+99",
            ),
            // Another number is counted separately, and the placeholder above has no limit.
            ("message_type=marketing to_number=2", "OK 0:messaging.message_type_marketing.to_number+2"),
            ("message_type=marketing", "OK"),
            ("message_type=alert to_number=1", "OK"),
            ("+60", ""),
            ("message_type=marketing to_number=1", "OK 0:messaging.message_type_marketing.to_number+2"),
        ],
    },
    Example {
        description: "the most specific match, and 0 per unit always denies",
        config: "
domain: edge
descriptors:
  - { key: remote_address, rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: remote_address, value: 50.0.0.5, rate_limit: { unit: second, requests_per_unit: 0 } }
",
        steps: &[
            ("remote_address=50.0.0.1", "OK 0:edge.remote_address+1"),
            ("remote_address=50.0.0.5", "OVER_LIMIT 0:edge.remote_address_50.0.0.5-0"),
            ("+3600", ""),
            ("remote_address=50.0.0.5", "OVER_LIMIT 0:edge.remote_address_50.0.0.5-0"),
        ],
    },
    Example {
        description: "a request is as deep as the config",
        config: "
domain: depth
descriptors:
  - key: key
    value: value
    rate_limit: { requests_per_unit: 300, unit: second }
  - key: other
    value: value
    descriptors:
      - { key: subkey, rate_limit: { requests_per_unit: 300, unit: second } }
",
        steps: &[
            ("key=value subkey=subvalue", "OK"),
            ("key=value", "OK 0:depth.key_value+299"),
            ("other=value subkey=subvalue", "OK 0:depth.other_value.subkey+299"),
            ("other=value", "OK"),
            ("subkey=subvalue", "OK"),
            ("subkey=subvalue other=value", "OK"),
        ],
    },
    Example {
        description: "unlimited, and let through",
        config: "
domain: internal
descriptors:
  - { key: ldap, rate_limit: { unlimited: true } }
  - { key: azure, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: azure, value: trusted }
",
        steps: &[
            ("ldap=x", "OK 0:unlimited"),
            ("ldap=x; azure=y", "OK 1:internal.azure+0 0:unlimited"),
            ("azure=y", "OVER_LIMIT 0:internal.azure-0"),
            ("azure=trusted", "OK"),
        ],
    },
    Example {
        description: "limits in shadow mode never deny",
        config: "
domain: shadow
descriptors:
  - key: service
    descriptors:
      - key: user
        value: user-a
        rate_limit: { requests_per_unit: 1, unit: second }
        shadow_mode: true
      - key: user
        value: user-b
        rate_limit: { requests_per_unit: 2, unit: second }
",
        steps: &[
            ("service=auth user=user-a", "OK 0:shadow.service.user_user-a+0"),
            ("service=auth user=user-a", "OK 0:shadow.service.user_user-a-0"),
            ("service=auth user=user-a", "OK 0:shadow.service.user_user-a-0"),
            ("service=auth user=user-b", "OK 0:shadow.service.user_user-b+1"),
            ("service=auth user=user-b", "OK 0:shadow.service.user_user-b+0"),
            ("service=auth user=user-b", "OVER_LIMIT 0:shadow.service.user_user-b-0"),
            // A service without its own entry: each value is counted separately.
            ("service=mail user=user-b", "OK 0:shadow.service.user_user-b+1"),
        ],
    },
    Example {
        description: "one limit replaces another, over all descriptors of a request",
        config: "
domain: replaced
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - key: user
        value: me
        rate_limit: { name: specific_limit, requests_per_unit: 1, unit: second }
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: me
        rate_limit:
          replaces: [{ name: specific_limit }]
          requests_per_unit: 2
          unit: second
",
        steps: &[
            ("key_1=value_1 user=me", "OK 0:specific_limit+0"),
            ("key_1=value_1 user=me", "OVER_LIMIT 0:specific_limit-0"),
            (
                "key_1=value_1 user=me; key_2=value_2 user=me",
                "OK 1:replaced.key_2_value_2.user_me+1",
            ),
            (
                "key_2=value_2 user=me; key_1=value_1 user=me",
                "OK 0:replaced.key_2_value_2.user_me+0",
            ),
            (
                "key_1=value_1 user=me; key_2=value_2 user=me",
                "OVER_LIMIT 1:replaced.key_2_value_2.user_me-0",
            ),
        ],
    },
    Example {
        description: "values with a default limit and with their own",
        config: "
domain: detailed
descriptors:
  - key: key1
    detailed_metric: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: key1
    value: value1
    rate_limit: { unit: minute, requests_per_unit: 2 }
",
        steps: &[
            ("key1=unspecified", "OK 0:detailed.key1+0"),
            ("key1=unspecified2", "OK 0:detailed.key1+0"),
            ("key1=unspecified", "OVER_LIMIT 0:detailed.key1-0"),
            ("key1=value1", "OK 0:detailed.key1_value1+1"),
        ],
    },
    Example {
        description: "wildcards at the end, in the middle and several",
        config: "
domain: wild
descriptors:
  - { key: key1, value: value*, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: path, value: /api/*/action, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: route, value: /api/*/r/*/action, rate_limit: { unit: minute, requests_per_unit: 1 } }
",
        steps: &[
            ("key1=value1", "OK 0:wild.key1_value-428aa502+0"),
            ("key1=value1", "OVER_LIMIT 0:wild.key1_value-428aa502-0"),
            ("key1=value2", "OK 0:wild.key1_value-428aa502+0"),
            ("key1=val", "OK"),
            ("path=/api/123/action", "OK 0:wild.path_-api-action-2acdb04e+0"),
            ("path=/api/123/other", "OK"),
            ("route=/api/v1/r/123/action", "OK 0:wild.route_-api-r-action-6df46627+0"),
            ("route=/api/v1/123/action", "OK"),
        ],
    },
    Example {
        description: "values below a default, with their metrics left out",
        config: "
domain: metrics
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: method
        value_to_metric: true
        descriptors:
          - { key: subject, rate_limit: { unit: minute, requests_per_unit: 1 } }
",
        steps: &[
            ("route=api method=GET subject=1", "OK 0:metrics.route.method.subject+0"),
            ("route=web method=GET subject=1", "OK 0:metrics.route.method.subject+0"),
            ("route=api method=GET subject=1", "OVER_LIMIT 0:metrics.route.method.subject-0"),
        ],
    },
    Example {
        description: "values of a wildcard that share a count, and that do not",
        config: "
domain: shared
descriptors:
  - key: files
    value: files/*
    share_threshold: true
    rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: apart
    value: apart/*
    share_threshold: false
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: route
    value: api/*
    share_threshold: true
    descriptors:
      - { key: method, rate_limit: { unit: minute, requests_per_unit: 1 } }
",
        steps: &[
            ("files=files/a.pdf", "OK 0:shared.files_files-6e56361b+1"),
            ("files=files/b.csv", "OK 0:shared.files_files-6e56361b+0"),
            ("files=files/c.txt", "OVER_LIMIT 0:shared.files_files-6e56361b-0"),
            ("apart=apart/a.pdf", "OK 0:shared.apart_apart-694f20b5+0"),
            ("apart=apart/b.csv", "OK 0:shared.apart_apart-694f20b5+0"),
            ("apart=apart/a.pdf", "OVER_LIMIT 0:shared.apart_apart-694f20b5-0"),
            // The parent is shared, the children are counted separately.
            ("route=api/v1 method=GET", "OK 0:shared.route_api-.method-4d956b25+0"),
            ("route=api/v2 method=POST", "OK 0:shared.route_api-.method-4d956b25+0"),
            ("route=api/v2 method=GET", "OVER_LIMIT 0:shared.route_api-.method-4d956b25-0"),
        ],
    },
    Example {
        description: "of the quotas of a request one is enough",
        config: "
domain: quotas
descriptors:
  - { key: service, value: one, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: service, value: two, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 2 } }
",
        steps: &[
            ("service=one; service=two", "OK 0:quotas.service_one+0 1:quotas.service_two+1"),
            ("service=one; service=two", "OK 0:quotas.service_one-0 1:quotas.service_two+0"),
            ("service=one; service=two", "OVER_LIMIT 0:quotas.service_one-0 1:quotas.service_two-0"),
            ("service=one", "OVER_LIMIT 0:quotas.service_one-0"),
        ],
    },
    Example {
        description: "every unit of time",
        config: "
domain: units
descriptors:
  - { key: u, value: s, rate_limit: { unit: SECOND, requests_per_unit: 1 } }
  - { key: u, value: w, rate_limit: { unit: Week, requests_per_unit: 1 } }
  - { key: u, value: m, rate_limit: { unit: month, requests_per_unit: 1 } }
  - { key: u, value: y, rate_limit: { unit: year, requests_per_unit: 1 } }
",
        steps: &[
            ("u=s; u=w; u=m; u=y", "OK 0:units.u_s+0 1:units.u_w+0 2:units.u_m+0 3:units.u_y+0"),
            ("u=s", "OVER_LIMIT 0:units.u_s-0"),
            ("+1", ""),
            ("u=s", "OK 0:units.u_s+0"),
            ("+604800", ""),
            ("u=w", "OK 0:units.u_w+0"),
            ("u=m", "OVER_LIMIT 0:units.u_m-0"),
            ("+1987200", ""),
            ("u=m", "OK 0:units.u_m+0"),
            ("u=y", "OVER_LIMIT 0:units.u_y-0"),
            ("+28944000", ""),
            ("u=y", "OK 0:units.u_y+0"),
        ],
    },
    Example {
        description: "the first wildcard wins, without backtracking",
        config: "
domain: order
descriptors:
  - { key: k, value: ab*, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: k, value: a*, descriptors: [{ key: n, rate_limit: { unit: hour, requests_per_unit: 2 } }] }
  - { key: k, value: abc, descriptors: [{ key: n, value: only, rate_limit: { unit: hour, requests_per_unit: 3 } }] }
  - { key: k, rate_limit: { unit: hour, requests_per_unit: 4 }, descriptors: [{ key: n, rate_limit: { unit: hour, requests_per_unit: 5 } }] }
",
        steps: &[
            ("k=abx", "OK 0:order.k_ab-cde919de+0"),
            ("k=ax n=1", "OK 0:order.k_a-.n-c0af54a6+1"),
            ("k=ax", "OK"),
            // `ab*` comes first and has no children.
            ("k=abx n=1", "OK"),
            // The exact value precedes both wildcards, and has only the child `only`.
            ("k=abc n=only", "OK 0:order.k_abc.n_only+2"),
            ("k=abc n=1", "OK"),
            ("k=abc", "OK"),
            ("k=z", "OK 0:order.k+3"),
            ("k=z n=1", "OK 0:order.k.n+4"),
            ("k=", "OK 0:order.k+3"),
        ],
    },
];

#[test]
fn documented_examples_decide_as_in_envoy() {
    for Example { description, config, steps } in EXAMPLES {
        let fixture = Fixture::new(config);
        for (number, (request, expected)) in steps.iter().enumerate() {
            match request.strip_prefix('+') {
                Some(seconds) => fixture.advance(seconds.parse().expect("seconds")),
                None => {
                    assert_eq!(
                        fixture.check(request),
                        *expected,
                        "{description}, step {number}: {request}"
                    )
                }
            }
        }
    }
}
