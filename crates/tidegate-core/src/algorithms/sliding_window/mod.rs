//! `sliding-window`: a sliding window that never exceeds its limit, in constant memory;
//! the default.
//!
//! There are two classic methods to count a sliding window, and each has a weakness.
//!
//! - The **two-counter estimate** ([`SlidingCounter`](crate::SlidingCounter)) assumes that the
//!   requests of the previous window arrived evenly. A client that sends everything at the end of
//!   a window violates the assumption and gets close to `2L`.
//! - The **log** ([`SlidingLog`](crate::SlidingLog)) remembers every request. It is exact, but
//!   its memory grows with the limit.
//!
//! This algorithm divides the window into cells and counts per cell. The oldest cell is partly
//! inside the window, and the question is how many of its units have already left. Instead of
//! assuming that they arrived evenly, it measures how far they fell behind an even pace.
//!
//! # Lag
//!
//! At the limit's own pace `f(x) = floor(L * x / W)` units arrive in `x` microseconds. A cell's
//! *lag* is the most by which its arrivals ever fell behind that pace:
//!
//! ```text
//!   limit 120 per 60 s: 15 cells of 4 s, the pace is 8 units per cell
//!
//!   units                                units
//!     8 |          pace .'*                8 |          pace .'***
//!     6 |          . '*                    6 |          . '  *
//!     4 |      . '*       lag 0            4 |      . '      *     lag 7
//!     2 |  . '*                            2 |  . '          *
//!     0 +-*---------------                 0 +---------------*---
//!       0     2 s     4 s                    0     2 s     4 s
//!       one unit every half second           all 8 units after 3.5 s
//! ```
//!
//! At every offset `y` of the cell at least `f(y) - lag` units had arrived: had there been
//! fewer, the next arrival would have raised the lag. So once the window has moved `x`
//! microseconds past the start of the cell, at least `f(x) - lag` of its units are a window
//! old. They are released, and no others. On the left, half of the cell is released after 2 s.
//! On the right nothing is released until the last unit is a window old. The estimate releases
//! four units in both cases, and on the right that is four too many.
//!
//! # Worked numbers
//!
//! ```text
//!   limit 120 per 60 s, cell 0 holds 8 units, first row with lag 0, second row with lag 7
//!
//!   now             60 s    61 s    62 s    63 s    64 s
//!   f(now - 60 s)      0       2       4       6       8
//!   used, lag 0        8       6       4       2       0
//!   used, lag 7        8       8       8       8       0   (the last hit was at 3.5 s,
//!                                                          kept as 3.734 s: see below)
//! ```
//!
//! # A cell
//!
//! A cell holds three numbers: the **units** charged in it, its **lag**, and its **last hit** in
//! fifteenths of the cell, rounded up. When the last hit is a window old, the whole cell is
//! released. That matters for a cell that was filled early and not charged again.
//!
//! The number of cells `N` depends on the limit: 15 up to 2,000 units, 7 up to 2,000,000, 3
//! above. At most `N + 1` of them overlap the window. Counts, lags and hits of all of them fit
//! in 48 bytes for every limit.
//!
//! Limits up to 20 need no cells: 20 times fit in the same 48 bytes, on a grid of 1 us or of
//! less than `W / 26,214`. Such a state, in the *times form*, is late by less than two steps of the
//! grid.
//!
//! # Bound
//!
//! **`L`, always.** Released units are at least a window old, so `used` is never below the
//! number of units admitted in the last window, and the argument for `sliding-log` applies. The
//! price is that capacity may return late, by at most one cell. `docs/proof.md` has the proof, and
//! `docs/accuracy.md` the effect on real traffic.
//!
//! # Forms and paces
//!
//! A key can be counted under several limits over the same window: after a reload, with an
//! override, or on nodes with different configurations. Forced charges can exceed any limit. So a
//! state has a [`WindowForm`] (times, or 15, 7 or 3 cells) and a pace (the `L` of `f` above), and
//! both can change while it holds units. Before units are charged under a limit:
//!
//! 1. An empty state takes the form and the pace of the limit.
//! 2. A form that is too narrow for the limit, or for the units, is widened: all held units are
//!    charged again in the next form, at their last hits. A form never becomes narrower while the
//!    state holds units. Only the widest form saturates.
//! 3. If the pace still differs, it becomes the limit's. The lags were measured against another
//!    pace, so they are raised until each cell is released as a whole.
//!
//! Alternating limits therefore lose precision, but never exceed the bound. A unit is released late
//! by at most one cell of each form that held it, and everything is released one window, one cell
//! and one fifteenth of a cell after the last charge.
//!
//! # Cost
//!
//! 48 bytes of cells, their position, form and pace. An admission reads the oldest and the current
//! cell. Computing a retry-after, or changing the form or the pace, reads all of them.

mod cells_form;
mod form;
mod packed_cells;
mod times_form;

use alloc::vec::Vec;

pub use cells_form::Cell;
use cells_form::Cells;
pub use form::WindowForm;
use packed_cells::{has_form_and_pace, newest_age, newest_before};
use times_form::Times;

use super::{AlgorithmState, rarely};
use crate::limit::{Grid, WindowPosition};
use crate::{Attempt, CellView, Cost, Decision, Limit, Packed, PackedWords, ResetAfter, Timestamp};

/// Words of a packed state: 15 cells of 23 bits, 7 of 44 or 3 of 83 and, in the bits that these
/// leave unused, the newest cell; or 20 times of 16.
const WORDS: usize = Packed::WORDS;

/// The state of a `sliding-window`. The default holds nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlidingWindow {
    contents: WindowContents,
}

/// The units of a window, in one of its forms.
#[derive(Clone, Copy, Debug)]
enum WindowContents {
    Times(Times),
    Cells(Cells),
}

impl Default for WindowContents {
    fn default() -> Self {
        WindowContents::Times(Times::default())
    }
}

/// Evaluates an expression on the times or on the cells.
macro_rules! each {
    ($window:expr, $held:ident => $body:expr) => {
        match $window {
            WindowContents::Times($held) => $body,
            WindowContents::Cells($held) => $body,
        }
    };
}

impl SlidingWindow {
    /// Restores a state in the times form from its times, oldest first, at most a window apart.
    /// Returns `None` if there are too many, or if they are not in order.
    pub fn from_times(times: &[u64]) -> Option<Self> {
        let contents = WindowContents::Times(Times::from_times(times)?);
        Some(SlidingWindow { contents })
    }

    /// Restores a state from its cells, oldest first, with their indexes. Returns `None` if `form`
    /// is the times form, or is too narrow for the cells or for the pace.
    pub fn from_cells(form: WindowForm, pace: u64, cells: &[(u64, Cell)]) -> Option<Self> {
        let contents = WindowContents::Cells(Cells::from_cells(form, pace, cells)?);
        Some(SlidingWindow { contents })
    }

    /// Creates an empty state with a form and a pace.
    fn new((form, pace): (WindowForm, u64)) -> Self {
        let contents = match form {
            WindowForm::Times => WindowContents::default(),
            _ => WindowContents::Cells(Cells::new(form, pace)),
        };
        SlidingWindow { contents }
    }

    /// Returns the form.
    pub fn form(&self) -> WindowForm {
        match &self.contents {
            WindowContents::Times(_) => WindowForm::Times,
            WindowContents::Cells(cells) => cells.form,
        }
    }

    /// Returns the pace, which is the limit that lags are measured against; 0 in the times form.
    pub fn pace(&self) -> u64 {
        match &self.contents {
            WindowContents::Times(_) => 0,
            WindowContents::Cells(cells) => cells.pace,
        }
    }

    /// The form and pace of the state or, if it is empty, those of the limit.
    pub(crate) fn form_under(&self, limit: &Limit) -> (WindowForm, u64) {
        if self.is_empty() { limit.form_and_pace() } else { (self.form(), self.pace()) }
    }

    /// Units of all times or cells, expired ones included.
    fn total(&self) -> u64 {
        each!(&self.contents, held => held.total)
    }

    /// Returns whether the state holds no units.
    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// Returns the cells that hold units with their indexes, oldest first; none in the times form.
    pub fn cells(&self) -> impl DoubleEndedIterator<Item = (u64, Cell)> {
        let cells = match &self.contents {
            WindowContents::Times(_) => None,
            WindowContents::Cells(cells) => Some(cells.iter()),
        };
        cells.into_iter().flatten()
    }

    /// Returns the times in the times form in steps of its grid, oldest first; none in the other
    /// forms.
    pub fn times(&self) -> impl DoubleEndedIterator<Item = u64> {
        let times = match &self.contents {
            WindowContents::Times(times) => Some(times.iter()),
            WindowContents::Cells(_) => None,
        };
        times.into_iter().flatten()
    }

    pub(crate) fn pack(&self, limit: &Limit) -> Option<Packed> {
        each!(&self.contents, held => held.pack(limit))
    }

    /// Restores a state that was packed.
    pub(crate) fn unpack(limit: &Limit, packed: &Packed) -> Self {
        let (head, deadline_us, words) = (packed.head(), packed.deadline_us(), packed.words);
        let contents = match packed_form(head) {
            WindowForm::Times => {
                WindowContents::Times(Times::unpack(limit, head, deadline_us, words))
            }
            form => {
                // The newest cell is a window old by the deadline, and was not a deadline step
                // earlier.
                let latest = limit.cell(form).split(deadline_us - limit.window_us()).0;
                let newest = newest_before(latest, head, form);
                WindowContents::Cells(Cells::unpack(form, head, newest, words))
            }
        };
        SlidingWindow { contents }
    }

    /// The last hits and the units of all times or cells, oldest first.
    fn held(&self, limit: &Limit) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let grid = Grid::new(limit, self.form(), self.pace());
        let step_us = grid.cell.value;
        let times = self.times().map(move |time| (time.saturating_mul(step_us), 1));
        let last_hit = move |(index, cell): (u64, Cell)| (grid.last_us(index, cell), cell.units);
        times.chain(self.cells().map(last_hit))
    }

    /// Returns the units that count against the limit.
    pub fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        let WindowContents::Cells(cells) = &self.contents else { return self.total() };
        // Only the oldest cell can be partly expired.
        let oldest = cells.iter().next();
        let expired = oldest
            .map_or(0, |(index, cell)| cells.grid(limit).expired(index, cell, now.as_micros()));
        cells.total - expired
    }

    /// The cells for display. In the times form, the units at one time are one cell.
    pub(crate) fn view(&self, limit: &Limit, now: Timestamp) -> Vec<CellView> {
        let grid = Grid::new(limit, self.form(), self.pace());
        let at = |index: u64| Timestamp::from_micros(index.saturating_mul(grid.cell.value));
        let mut views: Vec<CellView> = Vec::new();
        for time in self.times().map(at) {
            match views.last_mut() {
                Some(last) if last.last_hit == time => last.units += 1,
                _ => {
                    let unit =
                        CellView { start: time, last_hit: time, units: 1, lag: 0, expired: 0 };
                    views.push(unit);
                }
            }
        }
        views.extend(self.cells().map(|(index, cell)| CellView {
            start: at(index),
            last_hit: Timestamp::from_micros(grid.last_us(index, cell)),
            units: cell.units,
            lag: cell.lag,
            expired: grid.expired(index, cell, now.as_micros()),
        }));
        views
    }

    /// Moves the units of cells later than `now` to `now`, because the clock stepped back.
    #[cold]
    fn reenter_future(&mut self, limit: &Limit, now: &WindowPosition) {
        let WindowContents::Cells(cells) = &mut self.contents else { return };
        let (form, pace) = (cells.form, cells.pace);
        let current = limit.split(form, now).0;
        let mut ahead = 0;
        while cells.total > 0 && cells.newest > current {
            ahead += cells.take_newest(u64::MAX);
        }
        cells.advance(limit, now);
        self.make_room(limit, pace, ahead, now);
        self.add(limit, ahead, now);
    }

    /// Widens the form until it can hold `units` more, or is the widest.
    fn make_room(&mut self, limit: &Limit, pace: u64, units: u64, now: &WindowPosition) {
        while !self.has_room(limit, units, now)
            && let Some(form) = self.form().wider()
        {
            self.widen(limit, form, pace, now);
        }
    }

    fn has_room(&self, limit: &Limit, units: u64, now: &WindowPosition) -> bool {
        let most = self.form().most_units();
        if self.total().saturating_add(units) <= most {
            return true;
        }
        let WindowContents::Cells(cells) = &self.contents else { return false };
        let is_current = cells.newest == limit.split(cells.form, now).0;
        let held = if is_current { cells.get(cells.newest).units } else { 0 };
        held.saturating_add(units) <= most
    }

    /// Charges all held units again in a wider form, under another pace.
    #[cold]
    fn widen(&mut self, limit: &Limit, form: WindowForm, pace: u64, now: &WindowPosition) {
        let now_us = now.at.as_micros();
        let mut wider = Cells::new(form, pace);
        let grid = wider.grid(limit);
        // The times form holds units up to a step of its grid longer than a window. Their cell may
        // have expired, and there would be more cells than the form has room for.
        let (current, elapsed_us) = grid.cell.split(now_us);
        let oldest = current.saturating_sub(form.cells());
        for (last_us, units) in self.held(limit) {
            let (index, offset_us) = grid.cell.split(last_us.min(now_us));
            if index >= oldest {
                wider.add(&grid, units, index, offset_us);
            }
        }
        wider.drop_expired(&grid, current, elapsed_us);
        self.contents = WindowContents::Cells(wider);
    }

    /// Changes the pace, and raises the lags that were measured against the old one.
    #[cold]
    fn set_pace(&mut self, limit: &Limit, pace: u64, now: &WindowPosition) {
        if let WindowContents::Cells(cells) = &mut self.contents {
            cells.pace = pace;
            cells.forget_arrivals(&cells.grid(limit));
            cells.advance(limit, now);
        }
    }

    /// Changes the form and the pace to those that the limit and `units` more require.
    fn reshape(&mut self, limit: &Limit, units: u64, now: &WindowPosition) {
        let pace = limit.count();
        while self.form() < limit.form()
            && let Some(wider) = self.form().wider()
        {
            self.widen(limit, wider, pace, now);
        }
        self.make_room(limit, pace, units, now);
        if self.form() != WindowForm::Times && self.pace() != pace {
            self.set_pace(limit, pace, now);
        }
    }

    /// Adds units now, without changing the form or the pace. Units that do not fit are cut off.
    fn add(&mut self, limit: &Limit, units: u64, now: &WindowPosition) {
        let (index, offset_us) = limit.split(self.form(), now);
        match &mut self.contents {
            WindowContents::Times(times) => times.add(units, index, offset_us),
            WindowContents::Cells(cells) => cells.add(&cells.grid(limit), units, index, offset_us),
        }
    }
}

/// The form of a packed state, from its head.
#[inline(always)]
fn packed_form(head: u64) -> WindowForm {
    WindowForm::ALL[(head & 3) as usize]
}

/// Decides on a packed state in place, under a limit of the times form. Returns `None`, and leaves
/// the state unchanged, if it has to be unpacked.
///
/// Nearly all decisions request one or more units, find a state that is empty or has the form and
/// the pace of the limit, and find no time later than now. All others are made on the unpacked
/// state.
#[inline(always)]
pub(crate) fn decide_times<W: PackedWords>(
    packed: &mut Packed<W>,
    limit: &Limit,
    attempt: Attempt,
    admitted: bool,
) -> Option<Decision> {
    let Cost::Ask(units) = attempt.cost else { return None };
    let is_times = packed_form(packed.body) == WindowForm::Times;
    if !is_times || !packed.may_be_charged(limit, attempt.now.as_micros()) {
        return None;
    }
    let now = limit.cell_position(attempt.now);
    let deadline_us = packed.deadline_us();
    let mut times = Times::unpack(limit, packed.head(), deadline_us, &mut packed.words);
    if times.is_ahead(&now) {
        return None;
    }
    times.advance(limit, &now);
    let decision = times.apply_and_report(limit, &Attempt::new(units, now.at), &now, admitted);
    if times.total == 0 {
        // The deadline would become earlier.
        return None;
    }
    let (head, deadline) = times.pack_head(limit)?;
    packed.body = Packed::body(deadline, head);
    Some(decision)
}

/// Decides on a packed state in place, under a limit of a form with cells. Returns `None`, and
/// leaves the state unchanged, if it has to be unpacked; see [`decide_times`].
///
/// `FORM` is the index of the form in [`WindowForm::ALL`]. Because it is a constant, the numbers of
/// a state have constant positions and stay in registers.
#[inline(always)]
pub(crate) fn decide_cells<const FORM: usize, W: PackedWords>(
    packed: &mut Packed<W>,
    limit: &Limit,
    attempt: Attempt,
    admitted: bool,
) -> Option<Decision> {
    let Cost::Ask(units) = attempt.cost else { return None };
    let form = WindowForm::ALL[FORM];
    debug_assert_eq!(form, limit.form());
    let (now_us, pace) = (attempt.now.as_micros(), limit.count());
    let attempt = Attempt::new(units, attempt.now);
    if !packed.expires_within(limit.latest_deadline_us(), now_us) {
        rarely();
        if packed.deadline_us() > now_us || !packed.may_be_charged(limit, now_us) {
            return None;
        }
        let cells = Cells::empty(form, pace, &mut packed.words);
        let (decision, body) =
            decide_unpacked::<false, W>(cells, limit, &attempt, admitted, packed.body)?;
        packed.body = body;
        return Some(decision);
    }
    let may_be_charged =
        packed.keeps_high_deadline(limit, now_us) || packed.may_be_charged(limit, now_us);
    if !may_be_charged || !has_form_and_pace(packed.body, form, pace) {
        return None;
    }
    let now = limit.cell_position(attempt.now);
    // It follows from the deadline that the newest cell is fewer than 2^13 cells before or
    // after the current one.
    let newest = now.index - newest_age(now.index, packed.body, form)?;
    let mut cells = Cells::unpack(form, packed.body, newest, &mut packed.words);
    if form == WindowForm::Cells3 && cells.pace != pace {
        return None;
    }
    cells.pace = pace;
    let (decision, body) = if cells.is_steady(limit, &now) {
        decide_unpacked::<true, W>(cells, limit, &attempt, admitted, packed.body)?
    } else {
        rarely();
        decide_unpacked::<false, W>(cells, limit, &attempt, admitted, packed.body)?
    };
    packed.body = body;
    Some(decision)
}

/// Decides on the cells of a packed state with this body. Returns the decision and the new body, or
/// `None`, with the state unchanged, if no units are left.
///
/// `STEADY` is whether the cells are [steady](Cells::is_steady). As it is a constant, the function
/// is compiled a second time for them, without the steps that they do not need. Most decisions on a
/// busy key are of this kind, and denials gain the most: they leave the state as it is.
#[inline(always)]
fn decide_unpacked<const STEADY: bool, W: PackedWords>(
    mut cells: Cells<&mut W>,
    limit: &Limit,
    attempt: &Attempt,
    admitted: bool,
    body: u64,
) -> Option<(Decision, u64)> {
    let now = limit.cell_position(attempt.now);
    if STEADY {
        // They are equal already, but the compiler cannot know that.
        cells.newest = now.index;
    }
    cells.advance(limit, &now);
    let outcome = cells.apply(limit, attempt, &now, admitted);
    if !outcome.charged {
        rarely();
        if cells.is_empty() {
            // The deadline would become earlier.
            return None;
        }
        let decision = cells.report(limit, attempt.cost, &now, outcome);
        let body = match STEADY {
            true => body,
            false => cells.pack_in_place::<false>(&now, decision.reset_after, body),
        };
        return Some((decision, body));
    }
    // This is a separate call, because the report on a charge is short: the current cell is the
    // newest.
    let decision = cells.report(limit, attempt.cost, &now, outcome);
    // A limit of a form with cells is not 0, so its reset is when its state expires.
    Some((decision, cells.pack_in_place::<STEADY>(&now, decision.reset_after, body)))
}

impl AlgorithmState for SlidingWindow {
    fn advance(&mut self, limit: &Limit, now: &WindowPosition) {
        match &mut self.contents {
            WindowContents::Times(times) => times.advance(limit, now),
            WindowContents::Cells(cells) if cells.newest > limit.split(cells.form, now).0 => {
                self.reenter_future(limit, now);
            }
            WindowContents::Cells(cells) => cells.advance(limit, now),
        }
        if self.is_empty() {
            *self = SlidingWindow::default();
        }
    }

    fn available(&self, limit: &Limit, now: &WindowPosition) -> u64 {
        each!(&self.contents, held => held.available(limit, now))
    }

    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        each!(&self.contents, held => held.wait_us(limit, cost, now))
    }

    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        each!(&self.contents, held => held.reset_after(limit, now))
    }

    fn charge(&mut self, limit: &Limit, units: u64, _attempt: &Attempt, now: &WindowPosition) {
        if units == 0 {
            return;
        }
        if self.is_empty() {
            *self = SlidingWindow::new(limit.form_and_pace());
        }
        self.reshape(limit, units, now);
        self.add(limit, units, now);
    }

    fn admit(
        &mut self,
        limit: &Limit,
        units: u64,
        attempt: &Attempt,
        now: &WindowPosition,
        _: u64,
    ) -> u64 {
        self.charge(limit, units, attempt, now);
        // Widening the form, or changing the pace, may count units again that were released.
        self.available(limit, now)
    }

    fn refund(&mut self, limit: &Limit, units: u64) {
        each!(&mut self.contents, held => held.refund(limit, units));
        if self.is_empty() {
            *self = SlidingWindow::default();
        }
    }

    fn expires_at(&self, limit: &Limit) -> Timestamp {
        each!(&self.contents, held => held.expires_at(limit))
    }
}
