//! What is answered.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Decision, Limit, RetryAfter};

use crate::headers::{self, Shown};
use crate::policy::Mode;
use crate::stats::Decided;

/// The answer to a question: allowed if every limit that has a say allows it.
#[derive(Clone, Debug)]
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
    pub(super) speaker: Option<usize>,
}

/// One limit's part in an answer.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// The name of its policy; `None` for a limit of the caller's own.
    pub policy: Option<&'a str>,
    /// The limit.
    pub limit: &'a Limit,
    /// Whether it has a say.
    pub mode: Mode,
    /// Its own answer.
    pub decision: Decision,
}

impl Line<'_> {
    /// Whether it has a say.
    pub fn is_enforced(&self) -> bool {
        self.mode == Mode::Enforce
    }
}

impl<'a> Answer<'a> {
    /// The answer where one limit has all the say.
    pub(super) fn of_one(line: Line<'a>) -> Self {
        let allowed = line.decision.allowed;
        let mut lines = SmallVec::new();
        lines.push(line);
        Answer { allowed, decided: Decided::Exact, no_room: false, lines, speaker: Some(0) }
    }

    /// The line it speaks for: when denied the denying one with the longest wait,
    /// when allowed the one with the least remaining. `None` if no limit has a say.
    pub fn speaker(&self) -> Option<&Line<'a>> {
        self.lines.get(self.speaker?)
    }

    /// When it would pass if nothing else arrived.
    pub fn retry_after(&self) -> RetryAfter {
        match self.speaker() {
            Some(line) if !self.allowed => line.decision.retry_after,
            _ => RetryAfter::Now,
        }
    }

    /// Hands the lines that have a say to `render`, as headers and problems want them.
    pub fn show<R>(&self, render: impl FnOnce(&Shown<'_>) -> R) -> R {
        let lines: SmallVec<[headers::Line<'_>; 4]> =
            self.lines.iter().filter(|line| line.is_enforced()).map(shown).collect();
        let before = |speaker| self.lines[..speaker].iter().filter(|l| l.is_enforced()).count();
        let speaker = self.speaker.map(before);
        render(&Shown { allowed: self.allowed, lines: &lines, speaker })
    }
}

fn shown<'a>(line: &Line<'a>) -> headers::Line<'a> {
    headers::Line {
        policy: line.policy.unwrap_or_default(),
        limit: line.limit,
        remaining: Some(line.decision.remaining),
        retry_after: line.decision.retry_after,
        reset_after: Duration::from_micros(line.decision.reset_after.as_micros()),
    }
}
