//! Hints about input that looks wrong as a whole, with a remedy.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use tidegate::Limit;
use tidegate::unstable::policy::{RequestField, Template};

use crate::file_identity::is_dash;
use crate::format::Format;
use crate::policy_replay::UndecidedCounts;
use crate::reader_thread::ReadReport;
use crate::report::{counted, escape_path, share};
use crate::trace_file::FileReport;
use crate::utc::Utc;

/// A year. A file whose times all lie in 1970 is probably read in the wrong unit: milliseconds of
/// today, read as microseconds, are in January 1970.
const YEAR_US: u64 = 365 * 86_400_000_000;

/// Zones differ by multiples of a quarter of an hour.
const QUARTER_US: u64 = 900_000_000;

/// The most by which times in a log are usually out of order.
const DISORDER_US: u64 = 60_000_000;

/// Times after the year 2100 are probably not in the given unit.
const LATE_US: u64 = 4_102_444_800_000_000;

/// An event is late if it is earlier than an event before it by more than the shortest window
/// divided by this number. Servers log a request when it ends, so most logs are slightly out of
/// order, which hardly changes what a long window contains.
const LATE_PARTS_OF_WINDOW: u64 = 10;

/// One event in this many may be late.
const MOST_LATE: u64 = 100;

/// The number of policies that are listed because their keys lack a part, and of fields that are
/// listed because no request has them.
const MISSING_SHOWN: usize = 5;

/// In a window shorter than this, a rounded second shifts requests by more than a tenth of it.
const SHORT_WINDOW_US: u64 = 10_000_000;

/// The number of events from which whole seconds are not a coincidence.
const ROUNDED_EVENTS: u64 = 10;

impl ReadReport {
    /// Returns the hints, each of one or two sentences.
    pub fn hints(&self, shortest: Option<&Limit>) -> Vec<String> {
        let mut hints = Vec::from_iter(self.disorder(shortest));
        hints.extend(self.files.iter().flat_map(of_file));
        if let Some(limit) = shortest.filter(|limit| limit.window_us() < SHORT_WINDOW_US) {
            hints.extend(self.files.iter().filter_map(|file| rounded_times(file, limit)));
        }
        let step_us = self.problems.largest_step_us;
        let beside_us = step_us % QUARTER_US;
        if step_us >= 2 * QUARTER_US
            && (beside_us <= DISORDER_US || beside_us >= QUARTER_US - DISORDER_US)
        {
            let minutes = (step_us + QUARTER_US / 2) / QUARTER_US * 15;
            let (hours, minutes) = (minutes / 60, minutes % 60);
            hints.push(format!(
                "times step back by about {hours} h {minutes:02} min: the clock was set back, or \
                 times have no zone; set the zone with --zone"
            ));
        }
        if self.files.len() > 1 && self.apart() {
            hints.push(
                "the times of some files are more than a year from those of the others; check \
                 --time-unit"
                    .into(),
            );
        }
        if self.problems.malformed.count > self.events() {
            hints.push("more lines were skipped than read; check --format".into());
        }
        hints
    }

    /// Returns the hint for input that is not sorted by time, with the limit whose window is the
    /// shortest.
    pub fn disorder(&self, shortest: Option<&Limit>) -> Option<String> {
        let late: u64 = self.files.iter().map(|file| file.late).sum();
        let events = self.events();
        let limit = shortest.filter(|_| late.saturating_mul(MOST_LATE) > events)?;
        let (count, unit) = limit.window_in_units();
        let has_stdin = self.files.iter().any(|file| is_dash(&file.path));
        let what = match (has_stdin, self.files.len()) {
            (false, 1) => "the file",
            (true, 1) => "the input",
            (false, _) => "each file",
            (true, _) => "each input",
        };
        Some(format!(
            "{} of the events are earlier than an event before them by more than a tenth of the \
             shortest window ({count}{unit}): sort {what} by time; the counts do not describe real \
             time",
            share(late, events)
        ))
    }

    /// Returns whether some file lies more than a year from all others.
    fn apart(&self) -> bool {
        let mut spans: Vec<_> = self.files.iter().filter_map(|file| file.span).collect();
        spans.sort_unstable();
        spans.windows(2).any(|pair| pair[1].0.saturating_sub(pair[0].1) > YEAR_US)
    }
}

/// Returns how much earlier than an event before it an event must be to count as late.
pub fn late_after_us(shortest: &Limit) -> u64 {
    shortest.window_us() / LATE_PARTS_OF_WINDOW
}

/// Returns the hint for times in whole seconds under a limit with a short window.
fn rounded_times(file: &FileReport, limit: &Limit) -> Option<String> {
    if file.has_fractions || file.events < ROUNDED_EVENTS {
        return None;
    }
    Some(format!(
        "{}: times are whole seconds, which is coarse for `{limit}`: requests within a second count \
         as simultaneous, so more may be denied than in reality; log fractions of a second, or use \
         a window of 10s or more",
        escape_path(&file.path)
    ))
}

fn of_file(file: &FileReport) -> Vec<String> {
    let mut hints = Vec::new();
    let path = escape_path(&file.path);
    // In columns in another order, numeric keys are read as times.
    let or_name = match file.unnamed_columns {
        true => ", or, if the columns are not time,key, add a first line with their names",
        false => "",
    };
    if let Some((_, last_us)) = file.span {
        if let Some((unit, _)) = file.unit.filter(|_| last_us < YEAR_US) {
            let last = Utc { time_us: last_us };
            hints.push(format!(
                "{path}: times are read in {}, so the last one is {last}; if that is wrong, set \
                 --time-unit to s, ms, us or ns{or_name}",
                unit.name()
            ));
        } else if last_us > LATE_US {
            let last = Utc { time_us: last_us };
            hints.push(format!("{path}: the last time is {last}; check --time-unit{or_name}"));
        }
    }
    if file.host_guessed {
        hints.push(format!(
            "{path}: before their [date], lines have more than the three fields `host ident user`, \
             and no ident is `-`: the first field is read as the client; if it is not, remove what \
             is before the client"
        ));
    }
    if file.field_unused {
        hints.push(format!("{path}: --field has no effect on the formats clf and combined"));
    }
    if file.unit_unused {
        hints.push(format!("{path}: times are not numbers, so --time-unit has no effect"));
    }
    if file.incomplete > 0 {
        let what = match &file.template {
            Some(template) => {
                incomplete_keys(template, file.incomplete, std::slice::from_ref(file))
            }
            None => {
                let requests = counted(file.incomplete, "request");
                format!(
                    "the key of {requests} is `-`, a missing value; such requests share one key"
                )
            }
        };
        hints.push(format!("{path}: {what}"));
    }
    if file.zoneless > 0 {
        let times = counted(file.zoneless, "time");
        hints.push(format!("{path}: {times} had no zone: read as UTC; set the zone with --zone"));
    }
    hints
}

/// Describes requests of these files whose key lacks a part.
fn incomplete_keys(template: &Template, requests: u64, files: &[FileReport]) -> String {
    let verb = if requests == 1 { "has" } else { "have" };
    let requests = counted(requests, "request");
    let mut fields = template.fields();
    let (Some(field), None) = (fields.next(), fields.next()) else {
        return format!(
            "{requests} {verb} no value for a part of the key `{template}`; requests that lack the \
             same part share a key if their other parts are equal"
        );
    };
    let reason = reason_for_absence(field, files);
    format!("{requests} {verb} no `{field}`{reason}; such requests share one key")
}

/// Returns why requests of these files lack a field, to be appended to its name; empty if the
/// format is not the reason.
fn reason_for_absence(field: &RequestField, files: &[FileReport]) -> String {
    let formats: BTreeSet<&str> =
        files.iter().filter_map(|file| file.format).map(Format::name).collect();
    let formats = Vec::from_iter(formats).join(" and ");
    let may_contain = |file: &FileReport| file.format.is_none_or(|one| one.may_contain(field));
    match field {
        RequestField::ClientIp => " (a client that is logged by name has no address)".into(),
        _ if files.iter().any(may_contain) => String::new(),
        _ => format!(", which lines of format {formats} do not contain"),
    }
}

/// Describes a field that conditions of these policies name and no request has.
fn unseen_condition(field: &RequestField, policies: &[String], files: &[FileReport]) -> String {
    let reason = reason_for_absence(field, files);
    let noun = if policies.len() == 1 { "policy" } else { "policies" };
    let names: Vec<_> =
        policies.iter().take(MISSING_SHOWN).map(|name| format!("`{name}`")).collect();
    let more = if policies.len() > MISSING_SHOWN { ", ..." } else { "" };
    format!(
        "{noun} {}{more}: no request has a `{field}`{reason}, so conditions on it never hold",
        names.join(", ")
    )
}

impl UndecidedCounts {
    /// Returns hints about requests that were not decided as usual, each of one or two sentences.
    pub fn hints(&self, files: &[FileReport]) -> Vec<String> {
        let first = self.first.as_deref().unwrap_or_default();
        let rows = [
            (
                self.unmatched,
                "request",
                "passed because no policy applies (none matches, or `exempt` or `mode: off`)"
                    .to_string(),
            ),
            (self.refused, "invalid request", format!("would be rejected ({first})")),
            (
                self.no_room,
                "request",
                "had a new key when the store was full: raise max_keys".to_string(),
            ),
        ];
        let found = rows.into_iter().filter(|(count, ..)| *count > 0);
        let found = found.map(|(count, noun, text)| format!("{} {text}", counted(count, noun)));
        let not_replayed = (self.not_replayed > 0).then(|| {
            format!(
                "not replayed: {} under a concurrency limit; a trace has the start of a request, \
                 but not its end ({first})",
                counted(self.not_replayed, "request")
            )
        });
        let mut incomplete: Vec<_> = self.incomplete.iter().collect();
        incomplete.sort_by_key(|(_, (_, requests))| Reverse(*requests));
        let incomplete = incomplete.into_iter().take(MISSING_SHOWN).map(|(policy, of)| {
            format!("policy `{policy}`: {}", incomplete_keys(&of.0, of.1, files))
        });
        let unseen = self.unseen.iter().take(MISSING_SHOWN);
        let unseen = unseen.map(|(field, policies)| unseen_condition(field, policies, files));
        found.chain(unseen).chain(incomplete).chain(not_replayed).collect()
    }
}
