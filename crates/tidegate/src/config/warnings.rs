//! Warnings: parts of a config that are valid, but have no effect or an unexpected one.
//!
//! A warning is reported only where the config leaves no doubt, or where `tidegate explain` would
//! show the same for an ordinary request.

use ipnet::IpNet;

use super::path_notations::{from_regex, from_route_template, is_regex_like};
use super::reader::{LocatedNode, Object, Reader, excerpt, field_name};
use super::schema::{OVERRIDE, POLICY};
use super::suggestions::suggest;
use crate::Overflow;
use crate::policy::{CostSource, Mode, Policy, SharedBy, is_implied_by};

/// The largest number of values that are compared to find policies without an effect. Beyond it,
/// which takes hundreds of policies with long lists, the remaining policies are not compared.
const MAX_COMPARISONS: usize = 10_000_000;

/// The methods of HTTP and WebDAV, and `PURGE`, which caches use.
const METHODS: [&str; 24] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "CONNECT",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "QUERY",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "REPORT",
    "SEARCH",
    "MKCALENDAR",
    "ACL",
    "LINK",
    "UNLINK",
    "PURGE",
];

/// Warns of a method that does not exist. It is accepted, because servers may define others.
pub(super) fn check_method(reader: &Reader<'_>, located: &LocatedNode, text: &str) {
    let method = text.to_ascii_uppercase();
    if text == "*" || METHODS.contains(&&*method) {
        return;
    }
    let help = match &*method {
        "ANY" | "ALL" => "leave out `methods` to match every method".to_owned(),
        method => suggest(method, METHODS.into_iter()),
    };
    let message = format!("`{}` is not a method of HTTP", excerpt(text));
    reader.notice(located.node.span.clone(), &located.path, message, help);
}

/// Warns of trusted proxies that include every client.
pub(super) fn check_trusted(reader: &Reader<'_>, located: &LocatedNode, network: IpNet) {
    if network.prefix_len() > 0 {
        return;
    }
    let message = format!(
        "`{network}` trusts every client: each can choose the address under which it is counted"
    );
    let help = "list only the addresses of your proxies";
    reader.notice(located.node.span.clone(), &located.path, message, help);
}

/// Warns of a path or host that looks like a regular expression or a route template.
pub(super) fn check_pattern(reader: &Reader<'_>, located: &LocatedNode, text: &str) {
    let template = from_route_template(text);
    let notation = match &template {
        Some(_) => "a route template",
        None if is_regex_like(text) => "a regular expression",
        None => return,
    };
    let message = format!("`{}` looks like {notation}, but is matched as a glob", excerpt(text));
    let alternatives = || text.split('|').map(from_regex).collect::<Option<Vec<_>>>();
    let help = if let Some(glob) = template.or_else(|| from_regex(text)) {
        format!("write `{glob}`")
    } else if let Some(globs) = alternatives() {
        format!("write a list: `[{}]`", excerpt(&globs.join(", ")))
    } else if field_name(&located.path) == "host" {
        "write `*` for anything, dots included, and `{a,b}` for alternatives".into()
    } else {
        "write `*` for anything within a segment, `**` for any segments, and `{a,b}` for \
         alternatives"
            .into()
    };
    reader.notice(located.node.span.clone(), &located.path, message, help);
}

/// Warns of a `*` within a value of a header, query parameter or cookie, which is compared exactly.
pub(super) fn check_exact_value(reader: &Reader<'_>, located: &LocatedNode, text: &str) {
    if text == "*" || !text.contains('*') {
        return;
    }
    // The value may be a secret, so the message does not contain it.
    let message = "this value is compared exactly: its `*` matches only a `*`";
    let help = "list the complete values, or write `\"*\"` alone for any value";
    reader.notice(located.node.span.clone(), &located.path, message, help);
}

/// Warns of policies that have no effect, and of keys that requests share by accident. `items` are
/// the policies as written.
pub(super) fn check_policies(reader: &Reader<'_>, items: &[LocatedNode], policies: &[Policy]) {
    let mut comparisons_left = MAX_COMPARISONS;
    for (index, (item, policy)) in items.iter().zip(policies).enumerate() {
        let Some(object) = reader.object(item, POLICY) else { continue };
        // A policy that is off has no effect on purpose.
        if policy.variants().iter().all(|variant| variant.mode() == Mode::Off) {
            continue;
        }
        let written = WrittenPolicy { reader, object, policy };
        if !written.check_match() {
            continue;
        }
        written.check_key();
        written.check_costs();
        written.check_limits();
        written.check_others(index, policies, &mut comparisons_left);
    }
}

/// A policy, and where it is written.
struct WrittenPolicy<'s, 'r> {
    reader: &'r Reader<'s>,
    object: Object<'s, 'r>,
    policy: &'r Policy,
}

impl WrittenPolicy<'_, '_> {
    /// Warns if the policy applies to no request, and returns whether it may apply to one.
    fn check_match(&self) -> bool {
        let policy = self.policy;
        if let Some(condition) = policy.contradiction() {
            let message = format!(
                "policy `{}` never matches: no request satisfies `{condition}` and the other \
                 conditions",
                policy.name()
            );
            self.notice("match", message, "remove one of the conditions that exclude each other");
            return false;
        }
        if let Some(condition) = policy.exempts_all_by() {
            let message = format!(
                "policy `{}` limits nothing: `{condition}` exempts every request that it matches",
                policy.name()
            );
            self.notice("exempt", message, "narrow `exempt`, or write `mode: off`");
            return false;
        }
        true
    }

    /// Warns if requests share a key because they lack a part of it.
    fn check_key(&self) {
        let Some((part, shared_by)) = self.policy.missing_key_part() else { return };
        let part = excerpt(&part);
        let (message, help) = match shared_by {
            SharedBy::All => (
                format!("all requests share one key: none that matches has `{part}`"),
                "use a part that `match` names, or write `all` to share one count on purpose"
                    .into(),
            ),
            SharedBy::Some => {
                let by_address = format!("write `{{{part} | client_ip}}` to count them by address");
                let help = match part.contains('|') {
                    true => by_address,
                    false => format!(
                        "{by_address}, or add `\"{part}\": \"*\"` to `match` to leave them out"
                    ),
                };
                (format!("requests without `{part}` share one key, and so one limit"), help)
            }
        };
        self.notice("key", message, help);
    }

    /// Warns of a fixed cost that a limit can never admit, in the policy and in its overrides.
    fn check_costs(&self) {
        let overrides = self.object.get("overrides");
        let overrides = overrides.map_or_else(Vec::new, |all| self.reader.one_or_list(&all));
        for (index, variant) in self.policy.variants().iter().enumerate() {
            let CostSource::Fixed(units) = *variant.cost() else { continue };
            // A limit of 0 denies on purpose.
            let mut limits = variant.limits_below(units).filter(|limit| limit.capacity() > 0);
            let Some(limit) = limits.next().filter(|_| variant.mode() != Mode::Off) else {
                continue;
            };
            let message = format!("a cost of {units} can never pass `{limit}`");
            let help = "raise the limit, or lower the cost";
            match index.checked_sub(1).and_then(|index| overrides.get(index)) {
                // An override that changes neither of them has the warning of the policy.
                Some(item) if self.changes_cost_or_limits(item) => {
                    self.reader.notice(self.reader.start_of(item), &item.path, message, help);
                }
                Some(_) => {}
                None => self.notice("cost", message, help),
            }
        }
    }

    fn changes_cost_or_limits(&self, item: &LocatedNode) -> bool {
        let object = self.reader.object(item, OVERRIDE);
        object.is_some_and(|object| object.has("cost") || object.has("limits"))
    }

    /// Warns of a limit that can never deny, because another one of the policy denies first.
    fn check_limits(&self) {
        // A denial that consumes charges the limits differently.
        let consumes = self.policy.overflow() == Some(Overflow::Consume);
        let Some(located) = self.object.get("limits").filter(|_| !consumes) else { return };
        let items = self.reader.one_or_list(&located);
        for (item, limit) in items.iter().zip(self.policy.limits()) {
            let Some(by) = self.policy.limits().iter().find(|by| is_implied_by(limit, by)) else {
                continue;
            };
            let message = format!("`{limit}` never denies: `{by}` denies first");
            let help = "lower it, or remove it";
            self.reader.notice(item.node.span.clone(), &item.path, message, help);
        }
    }

    /// Warns if another policy always replaces this one, or denies whatever it would deny.
    fn check_others(&self, index: usize, policies: &[Policy], comparisons_left: &mut usize) {
        let policy = self.policy;
        let is_replaced =
            |other: &Policy| policies.iter().any(|by| by.replaces().contains(&other.name().into()));
        for (other_index, other) in policies.iter().enumerate() {
            let comparisons = policy.match_size() * other.match_size();
            if other_index == index || comparisons > *comparisons_left {
                continue;
            }
            *comparisons_left -= comparisons;
            let (name, by) = (policy.name(), other.name());
            if policy.is_always_replaced_by(other) {
                let message = format!(
                    "policy `{name}` never applies: `{by}` replaces it, and matches every request \
                     that it matches"
                );
                let help = format!("narrow the `match` of `{by}`, or remove `{name}`");
                return self.notice("name", message, help);
            }
            // Of two equal policies, the second is superfluous.
            let is_first = other_index > index && other.is_covered_by(policy);
            if policy.is_covered_by(other) && !is_first && !is_replaced(other) {
                let message = format!(
                    "policy `{name}` never denies first: `{by}` matches every request that it \
                     matches, under the same key, and its limits are at least as strict"
                );
                let lower = format!("lower the limits of `{name}`, or remove it");
                let help = match other.matching().imply(policy.matching()) {
                    // In place of the other one, it would make that one superfluous.
                    true => lower,
                    false => format!(
                        "{lower}; or, if `{name}` should apply in place of `{by}`, add \
                         `replaces: [{by}]` to it"
                    ),
                };
                return self.notice("name", message, help);
            }
        }
    }

    fn notice(&self, field: &str, message: String, help: impl Into<String>) {
        let located = self.object.get(field);
        let located = located.as_ref().unwrap_or(self.object.located());
        let span = match field {
            // These are mappings, which may span many lines.
            "match" | "exempt" => self.object.name_span(field),
            _ => located.node.span.clone(),
        };
        self.reader.notice(span, &located.path, message, help);
    }
}
