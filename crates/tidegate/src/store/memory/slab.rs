//! Where states live that do not fit a slot, by number.

use tidegate_core::{Permits, SlidingLog, State};

/// A list with holes, and a list of the holes. The numbers it is asked for are those it gave out
/// and has not removed: slots hold them, one each.
#[derive(Debug, Default)]
pub(super) struct Slab {
    states: Vec<Kept>,
    free: Vec<u32>,
}

/// A state in the slab. Nearly all are logs and permits, so the others are boxed.
#[derive(Debug)]
enum Kept {
    Log(SlidingLog),
    Permits(Permits),
    Other(Box<State>),
    /// There is none, or it was taken out.
    Nothing,
}

impl From<State> for Kept {
    fn from(state: State) -> Self {
        match state {
            State::SlidingLog(log) => Kept::Log(log),
            State::Concurrency(permits) => Kept::Permits(permits),
            other => Kept::Other(Box::new(other)),
        }
    }
}

impl Slab {
    /// Keeps a state and returns its number.
    pub(super) fn insert(&mut self, state: State) -> u64 {
        if let Some(number) = self.free.pop() {
            self.states[number as usize] = state.into();
            return u64::from(number);
        }
        // An eighth at a time: doubling would leave a third of it empty on average.
        if self.states.len() == self.states.capacity() {
            self.states.reserve_exact(self.states.len() / 8 + 4);
        }
        self.states.push(state.into());
        self.states.len() as u64 - 1
    }

    /// Takes a state out, to be put back or removed.
    pub(super) fn take(&mut self, number: u64) -> State {
        match std::mem::replace(&mut self.states[number as usize], Kept::Nothing) {
            Kept::Log(log) => State::SlidingLog(log),
            Kept::Permits(permits) => State::Concurrency(permits),
            Kept::Other(state) => *state,
            Kept::Nothing => unreachable!("a slot has the number of a state"),
        }
    }

    /// Puts a state back.
    pub(super) fn put(&mut self, number: u64, state: State) {
        self.states[number as usize] = state.into();
    }

    /// Removes a state and returns it.
    pub(super) fn remove(&mut self, number: u64) -> State {
        self.free.push(number as u32);
        self.take(number)
    }
}
