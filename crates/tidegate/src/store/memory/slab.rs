//! Where states live that do not fit a slot, by number.

use tidegate_core::{DynState, Permits, SlidingLog, State};

/// A list with holes, and a list of the holes. The numbers it is asked for are those it gave out
/// and has not removed: slots hold them, one each.
#[derive(Debug, Default)]
pub(super) struct Slab {
    states: Vec<Kept>,
    free: Vec<u32>,
}

/// A state in the slab. Nearly all are logs and permits, so the others are boxed. Aligned so that
/// a state is in at most two cache lines, which a processor loads together.
#[derive(Debug)]
#[repr(align(32))]
enum Kept {
    Log(SlidingLog),
    Permits(Permits),
    Other(Box<State>),
    /// It was removed.
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

    /// A state, to be decided on where it is.
    #[inline]
    pub(super) fn get(&mut self, number: u64) -> &mut dyn DynState {
        match &mut self.states[number as usize] {
            Kept::Log(log) => log,
            Kept::Permits(permits) => permits,
            Kept::Other(state) => &mut **state,
            Kept::Nothing => unreachable!("a slot has the number of a state"),
        }
    }

    /// A log.
    #[inline]
    pub(super) fn log(&mut self, number: u64) -> Option<&mut SlidingLog> {
        match &mut self.states[number as usize] {
            Kept::Log(log) => Some(log),
            _ => None,
        }
    }

    /// The permits of a `concurrency` limit.
    pub(super) fn permits(&mut self, number: u64) -> Option<&mut Permits> {
        match &mut self.states[number as usize] {
            Kept::Permits(permits) => Some(permits),
            _ => None,
        }
    }

    /// A copy of a state.
    pub(super) fn copy(&self, number: u64) -> State {
        match &self.states[number as usize] {
            Kept::Log(log) => State::SlidingLog(log.clone()),
            Kept::Permits(permits) => State::Concurrency(permits.clone()),
            Kept::Other(state) => (**state).clone(),
            Kept::Nothing => unreachable!("a slot has the number of a state"),
        }
    }

    /// Removes a state and returns how many log entries or permits it held.
    pub(super) fn remove(&mut self, number: u64) -> usize {
        let entries = self.get(number).entries();
        self.states[number as usize] = Kept::Nothing;
        self.free.push(number as u32);
        entries
    }
}
