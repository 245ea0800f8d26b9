//! What is answered.

use std::ptr;
use std::time::Duration;

use http::HeaderMap;
use smallvec::SmallVec;
#[doc(no_inline)]
pub use tidegate_core::DenialReason;
use tidegate_core::{Decision, Limit, ResetAfter, RetryAfter};

use super::agree::Agreed;
use super::own::OwnPolicy;
use super::plan::Part;
use crate::check::{BEHIND_OTHERS_US, reported_limit};
use crate::headers::{self, Fields, Form, Forms, Listed, Prerendered, Problem, Shown};
use crate::policy::Mode;
use crate::stats::Decided;
use crate::{Check, CheckError, Limiter, Timestamp, Verdict};

/// The answer to a question: allowed if every limit that has a say allows it.
#[derive(Clone, Debug, Default)]
pub struct Answer<'a> {
    /// Whether it may go ahead. If not, nothing was charged.
    pub allowed: bool,
    /// How it was decided.
    pub decided: Decided,
    /// Whether it was denied, or a forced charge was not recorded, because the store
    /// is full and not because anything was used up.
    pub no_room: bool,
    /// One per limit, policies in config order.
    pub lines: SmallVec<[Line<'a>; 4]>,
    /// The questions that met a policy without limits, in order.
    pub unlimited: Vec<usize>,
    pub(super) speaker: Option<usize>,
}

/// One limit's part in an answer.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// The name of its policy; `None` for a limit of the caller's own.
    pub policy: Option<&'a str>,
    /// The policy itself, if it is the program's own: what was charged is settled by it.
    pub(super) own: Option<&'a OwnPolicy>,
    /// Which question it belongs to.
    pub question: usize,
    /// The limit.
    pub limit: &'a Limit,
    /// The header text of its policy, if that was rendered before.
    pub(super) fields: Option<&'a Prerendered>,
    /// Whether it has a say.
    pub mode: Mode,
    /// Its own answer. What the store did not say is 0 in it: see [`Line::remaining`].
    pub decision: Decision,
    /// How it was decided.
    pub decided: Decided,
    /// Whether the whole limit allows the cost, but this node's share of it does not.
    pub(super) beyond_share: bool,
}

impl<'a> Line<'a> {
    /// What is left; `None` where nobody knows, because the store failed.
    pub fn remaining(&self) -> Option<u64> {
        self.is_known().then_some(self.decision.remaining)
    }

    /// When everything is available again; `None` where nobody knows.
    pub fn reset_after(&self) -> Option<ResetAfter> {
        self.is_known().then_some(self.decision.reset_after)
    }

    fn is_known(&self) -> bool {
        matches!(self.decided, Decided::Exact | Decided::Local)
    }

    /// Whether it has a say.
    pub fn is_enforced(&self) -> bool {
        self.mode == Mode::Enforce
    }

    /// Whether it denies because the policy fails closed.
    fn fails_closed(&self) -> bool {
        self.decided == Decided::FailedClosed && !self.decision.allowed
    }

    /// Whether the cost can never pass, with the store or without.
    fn is_never(&self) -> bool {
        self.decision.retry_after == RetryAfter::Never && !self.fails_closed()
    }
}

impl<'a> Answer<'a> {
    /// Becomes the answer of the store to the limits of these parts. Where questions differ about one
    /// count, other limits were `agreed` on.
    pub(super) fn set(&mut self, parts: &[Part<'a>], agreed: &[Agreed<'a>], verdict: &Verdict) {
        (self.allowed, self.decided) = (verdict.allowed, Decided::Exact);
        (self.no_room, self.speaker) = (verdict.no_room, verdict.speaker());
        self.lines.clear();
        let mut decisions = verdict.decisions.iter();
        for part in parts {
            for (own, decision) in part.limits.iter().zip(decisions.by_ref()) {
                let limit = agreed.get(self.lines.len()).map_or(own, |(limit, _)| *limit);
                self.lines.push(part.line(limit, *decision, Decided::Exact));
            }
        }
    }

    /// Becomes the answer of a limiter to a single check that is enforced.
    #[inline(always)]
    pub(super) fn decide_one(
        &mut self,
        line: Line<'a>,
        limiter: &Limiter,
        check: &Check<'_>,
    ) -> Result<(), CheckError> {
        self.lines.clear();
        self.lines.push(line);
        let decision = &mut self.lines[0].decision;
        *decision = limiter.store().decide_one(check, None)?;
        (self.allowed, self.decided) = (decision.allowed, Decided::Exact);
        (self.no_room, self.speaker) = (decision.no_room, Some(0));
        Ok(())
    }

    /// The answer of lines that were not all decided by the store: any denial wins.
    /// It is as certain as the least certain of those that have a say.
    pub(super) fn of_lines(lines: SmallVec<[Line<'a>; 4]>) -> Self {
        let enforced = || lines.iter().enumerate().filter(|(_, line)| line.is_enforced());
        let decided = enforced().map(|(_, line)| line.decided).max().unwrap_or_default();
        let limits = enforced().map(|(index, line)| (index, &line.decision, line.remaining()));
        let (allowed, speaker) = reported_limit(limits);
        Answer { allowed, decided, no_room: false, lines, unlimited: Vec::new(), speaker }
    }

    /// What would pass, denied because others are before it: of what it wants, what is
    /// left is theirs.
    pub(super) fn in_line(mut self) -> Self {
        if let Some(line) = self.speaker.and_then(|speaker| self.lines.get_mut(speaker)) {
            line.decision.allowed = false;
            line.decision.retry_after = RetryAfter::Micros(BEHIND_OTHERS_US);
            self.allowed = false;
        }
        self
    }

    /// The line it speaks for: when denied the denying one with the longest wait,
    /// when allowed the one with the least remaining. `None` if no limit has a say.
    pub fn speaker(&self) -> Option<&Line<'a>> {
        self.lines.get(self.speaker?)
    }

    /// The limit that is reported for one of several questions, chosen as for the whole answer.
    pub fn reported_limit_of(&self, question: usize) -> Option<&Line<'a>> {
        let own = |line: &Line<'_>| line.is_enforced() && line.question == question;
        let lines = self.lines.iter().enumerate().filter(|(_, line)| own(line));
        let limits = lines.map(|(index, line)| (index, &line.decision, line.remaining()));
        let (_, reported) = reported_limit(limits);
        self.lines.get(reported?)
    }

    /// When it would pass if nothing else arrived.
    pub fn retry_after(&self) -> RetryAfter {
        match self.speaker() {
            Some(line) if !self.allowed => line.decision.retry_after,
            _ => RetryAfter::Now,
        }
    }

    /// Why it was denied; `None` if it was allowed.
    ///
    /// The store's failure is the reason where a policy fails closed, or where the cost exceeds this
    /// node's share of a limit. Such a denial says nothing about the key, so it is never a 429, also
    /// if another limit denies as well. But a cost above a node's share that another limit can never
    /// admit is denied for good.
    pub fn denial_reason(&self) -> Option<DenialReason> {
        if self.allowed {
            return None;
        }
        let enforced = || self.lines.iter().filter(|line| line.is_enforced());
        let is_never = enforced().any(Line::is_never);
        let fails = |line: &Line<'_>| line.fails_closed() || line.beyond_share && !is_never;
        Some(match self.no_room {
            _ if enforced().any(fails) => DenialReason::StoreFailed,
            true => DenialReason::StoreFull,
            false => DenialReason::LimitReached,
        })
    }

    /// The problem document of a denial.
    pub fn problem<'s>(&self, shown: &'s Shown<'s>) -> Problem<'s> {
        match self.denial_reason() {
            Some(DenialReason::StoreFailed) => Problem::ReducedCapacity(shown),
            Some(DenialReason::StoreFull) => Problem::NoRoom(shown),
            Some(DenialReason::LimitReached | DenialReason::QueueFull) | None => {
                Problem::QuotaExceeded(shown)
            }
        }
    }

    /// Writes the header fields of a response into `out`, as [`headers::render`] does. `now` is the
    /// time on the limiter's clock.
    pub fn write_fields(&self, forms: Forms, now: Timestamp, out: &mut HeaderMap) {
        let mut fields = Fields::default();
        self.fill_fields(forms, || now, &mut fields);
        fields.write(out);
    }

    /// Fills in the header fields of a response. The clock is read only where a field needs the
    /// time.
    pub(crate) fn fill_fields(
        &self,
        forms: Forms,
        now: impl FnOnce() -> Timestamp,
        fields: &mut Fields,
    ) {
        let Some(line) = self.speaker() else { return };
        fields.forms = forms;
        fields.reported.allowed = self.allowed;
        fields.reported.remaining = line.remaining();
        fields.reported.reset_after_us = line.decision.reset_after.as_micros();
        fields.reported.set_wait(line.decision.retry_after);
        if forms.contains(Form::XRateLimit) {
            fields.reported.now = now();
        }
        if forms.states_limit() {
            let count = line.limit.count();
            let known = line.fields.and_then(|fields| fields.count(count));
            fields.limit = Some(known.unwrap_or_else(|| headers::number(count)));
        }
        let is_newest = forms.contains(Form::Draft10);
        if forms.lists_limits()
            && !(is_newest && self.list_prerendered(&mut fields.listed).is_some())
        {
            fields.listed = self.show(|shown| Listed::of(forms, shown));
        }
    }

    /// Lists the enforced policies, if that was rendered before: every line must belong
    /// to a policy that is listed once, with all of its limits.
    fn list_prerendered(&self, listed: &mut Listed) -> Option<()> {
        let mut policies = SmallVec::<[&Prerendered; 4]>::new();
        let mut lines = &self.lines[..];
        while let [first, rest @ ..] = lines {
            if !first.is_enforced() {
                lines = rest;
                continue;
            }
            let fields = first.fields?;
            let (own, rest) = lines.split_at_checked(fields.len())?;
            let is_own = |line: &Line<'_>| line.fields.is_some_and(|one| ptr::eq(one, fields));
            if !own.iter().all(is_own) {
                return None;
            }
            policies.push(fields);
            lines = rest;
        }
        Prerendered::join(&policies, self.enforced_speaker()?, listed)
    }

    /// Hands the lines that have a say to `render`, as headers and problems want them.
    pub fn show<R>(&self, render: impl FnOnce(&Shown<'_>) -> R) -> R {
        let lines: SmallVec<[headers::Line<'_>; 4]> =
            self.lines.iter().filter(|line| line.is_enforced()).map(shown).collect();
        render(&Shown { allowed: self.allowed, lines: &lines, speaker: self.enforced_speaker() })
    }

    /// The index of the reported line among the enforced ones.
    #[inline]
    fn enforced_speaker(&self) -> Option<usize> {
        let before = |speaker| self.lines[..speaker].iter().filter(|l| l.is_enforced()).count();
        self.speaker.map(before)
    }
}

fn shown<'a>(line: &Line<'a>) -> headers::Line<'a> {
    headers::Line {
        policy: line.policy.unwrap_or_default(),
        limit: line.limit,
        remaining: line.remaining(),
        retry_after: line.decision.retry_after,
        reset_after: Duration::from_micros(line.decision.reset_after.as_micros()),
    }
}
