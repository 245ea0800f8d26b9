//! Where states live that do not fit a slot, by number.

use tidegate_core::State;

/// A list with holes, and a list of the holes. The numbers it is asked for are
/// those it gave out and has not let go: slots hold them, one each.
#[derive(Debug, Default)]
pub(super) struct Slab {
    states: Vec<Option<State>>,
    free: Vec<u32>,
}

impl Slab {
    /// Keeps a state and says under which number.
    pub(super) fn insert(&mut self, state: State) -> u64 {
        if let Some(number) = self.free.pop() {
            self.states[number as usize] = Some(state);
            return u64::from(number);
        }
        // An eighth at a time: doubling would leave a third of it empty on average.
        if self.states.len() == self.states.capacity() {
            self.states.reserve_exact(self.states.len() / 8 + 4);
        }
        self.states.push(Some(state));
        self.states.len() as u64 - 1
    }

    pub(super) fn get_mut(&mut self, number: u64) -> &mut State {
        self.states[number as usize].as_mut().expect("a slot's number is in the slab")
    }

    /// Lets go of a state.
    pub(super) fn remove(&mut self, number: u64) -> State {
        self.free.push(number as u32);
        self.states[number as usize].take().expect("a slot's number is in the slab")
    }
}
