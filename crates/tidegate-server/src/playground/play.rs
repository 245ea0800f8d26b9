//! One limit and its events, on virtual time.
//!
//! Every limit is played alone, on a fresh [`State`] of the core: the transition that the
//! stores host. Time is the events' own, so a window of a day takes no longer than one
//! of a second.

use tidegate::{Cost, Decision, Limit, Timestamp};
use tidegate_core::{Ask, State, View};

use super::question::{Event, Question};
use crate::replay::block::Row;
use crate::replay::truth::Truth;

/// What became of a limit's events.
pub struct Played {
    /// One for each event.
    pub decisions: Vec<Decision>,
    /// One for each time that was asked for.
    pub samples: Vec<Sample>,
    /// The most units admitted within any window.
    pub most_in_window: u64,
}

/// A state at a time, with all events up to that time.
pub struct Sample {
    pub at: Timestamp,
    /// What the cost that was asked about would be answered; it is not charged.
    pub decision: Decision,
    pub view: View,
}

/// Plays a limit.
pub fn play(limit: &Limit, question: &Question) -> Played {
    let mut state = State::new(limit);
    let mut decisions = Vec::with_capacity(question.events.len());
    let mut samples = Vec::with_capacity(question.samples.len());
    let mut events = question.events.iter().peekable();
    let mut decide_until = |state: &mut State, until: Option<Timestamp>| {
        while let Some(event) = events.next_if(|event| until.is_none_or(|until| event.at <= until))
        {
            decisions.push(state.decide(limit, &Ask::new(event.cost, event.at)));
        }
    };
    for at in &question.samples {
        decide_until(&mut state, Some(*at));
        samples.push(sample(&state, limit, question.cost, *at));
    }
    decide_until(&mut state, None);
    let most_in_window = most_in_window(limit, &question.events, &decisions);
    Played { decisions, samples, most_in_window }
}

fn sample(state: &State, limit: &Limit, cost: u64, at: Timestamp) -> Sample {
    let ask = Ask::new(Cost::Ask(cost), at);
    let mut copy = state.clone();
    copy.admits(limit, &ask);
    // Settled as if another limit had said no: answered, and nothing charged.
    let decision = copy.finish(limit, &ask, false);
    Sample { at, decision, view: state.view(limit, at) }
}

/// What was really let through at worst, by the count that replays are held against.
fn most_in_window(limit: &Limit, events: &[Event], decisions: &[Decision]) -> u64 {
    let mut truth = Truth::new(limit.window_us(), limit.count());
    for (event, decision) in events.iter().zip(decisions) {
        let cost = i64::try_from(event.cost).unwrap_or(i64::MAX);
        truth.record_one(&Row::numbered(event.at.as_micros(), cost, 0), decision.allowed);
    }
    truth.largest().count
}
