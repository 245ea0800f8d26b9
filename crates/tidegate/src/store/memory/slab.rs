//! Storage for states that do not fit a slot, by index.

use tidegate_core::{DynState, Permits, SlidingLog, State};

/// States by index, and the list of free indexes. Every index passed to it was returned by `insert`
/// and not removed since. Each is held by one slot.
#[derive(Debug, Default)]
pub(super) struct Slab {
    states: Vec<SlabEntry>,
    free: Vec<u32>,
}

/// A state in the slab. Nearly all are logs and permits, so the others are boxed. The alignment
/// keeps a state within two adjacent cache lines, which a processor loads together.
#[derive(Debug)]
#[repr(align(32))]
enum SlabEntry {
    Log(SlidingLog),
    Permits(Permits),
    Other(Box<State>),
    /// The state was removed.
    Vacant,
}

impl From<State> for SlabEntry {
    fn from(state: State) -> Self {
        match state {
            State::SlidingLog(log) => SlabEntry::Log(log),
            State::Concurrency(permits) => SlabEntry::Permits(permits),
            other => SlabEntry::Other(Box::new(other)),
        }
    }
}

impl Slab {
    /// Inserts a state and returns its number.
    pub(super) fn insert(&mut self, state: State) -> u64 {
        if let Some(number) = self.free.pop() {
            self.states[number as usize] = state.into();
            return u64::from(number);
        }
        // It grows by an eighth, because doubling would leave a third of it empty on average.
        if self.states.len() == self.states.capacity() {
            self.states.reserve_exact(self.states.len() / 8 + 4);
        }
        self.states.push(state.into());
        self.states.len() as u64 - 1
    }

    /// Returns a state, to be decided in place.
    #[inline]
    pub(super) fn get(&mut self, number: u64) -> &mut dyn DynState {
        match &mut self.states[number as usize] {
            SlabEntry::Log(log) => log,
            SlabEntry::Permits(permits) => permits,
            SlabEntry::Other(state) => &mut **state,
            SlabEntry::Vacant => unreachable!("a slot has the number of a state"),
        }
    }

    /// Returns a state that is a log.
    #[inline]
    pub(super) fn log(&mut self, number: u64) -> Option<&mut SlidingLog> {
        match &mut self.states[number as usize] {
            SlabEntry::Log(log) => Some(log),
            _ => None,
        }
    }

    /// Returns a state that holds permits.
    pub(super) fn permits(&mut self, number: u64) -> Option<&mut Permits> {
        match &mut self.states[number as usize] {
            SlabEntry::Permits(permits) => Some(permits),
            _ => None,
        }
    }

    /// Returns a copy of a state.
    pub(super) fn copy(&self, number: u64) -> State {
        match &self.states[number as usize] {
            SlabEntry::Log(log) => State::SlidingLog(log.clone()),
            SlabEntry::Permits(permits) => State::Concurrency(permits.clone()),
            SlabEntry::Other(state) => (**state).clone(),
            SlabEntry::Vacant => unreachable!("a slot has the number of a state"),
        }
    }

    /// Removes a state and returns the number of log entries or permits it held.
    pub(super) fn remove(&mut self, number: u64) -> u64 {
        let entries = self.get(number).entries() as u64;
        self.states[number as usize] = SlabEntry::Vacant;
        self.free.push(number as u32);
        entries
    }
}
