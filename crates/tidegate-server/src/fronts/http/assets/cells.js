// The strip of a sliding-window lane, as paths and text; timeline.js puts them on the page.
//
// A limit above 20 is counted in cells:
//
//     ▨▨▨▨     hatched: units that have certainly expired
//     ███|     filled: units that still count; the line marks the last hit
//     ━━       lag: no unit expires before the left edge of the dashed box is past this line
//
// A smaller limit keeps the time of every request: one line per time.
//
// The units, lags and expired units come from the engine. The page computes one number itself, for
// the formula: the units that the rate of the limit allows in the part of a cell that left the window.
"use strict";

/** The largest limit that sliding-window counts with a log of times. */
const MOST_LOGGED = 20;

/** Heights below the base line: bars between the first two, then the lag, then two rows of text. */
const BAR_TOP = 4;
const BAR_BASE = 28;
const LAG = 32;
const UNITS_TEXT = 44;
const LAG_TEXT = 54;
/** The height of the strip. */
export const CELLS_HEIGHT = 60;

/** Pixels that a cell needs for a number, and for “lag 12”. */
const NUMBER_WIDTH = 16;
const LAG_WIDTH = 30;

/** Returns whether a limit is counted in cells. */
export const usesCells = (count) => count > MOST_LOGGED;

/** Returns the labels of a lane, which depend on its limit. */
export function captions(count) {
  return usesCells(count)
    ? {
      about: "counts per cell, and measures how far each cell fell behind the limit's pace",
      formula: "used = units − expired, over all cells",
      oldest: "oldest cell: expired = paced − lag",
    }
    : {
      about: "limit up to 20: keeps the time of every admitted request",
      formula: "used = admitted in the last window",
      oldest: "oldest time",
    };
}

const time = (us) => `${(us / 1e6).toFixed(3)} s`;
const counted = (units) => (units === 1 ? "1 unit" : `${units} units`);
const sum = (cells, name) => cells.reduce((total, cell) => total + cell[name], 0);

/** Returns the sum with its numbers. */
export function workedSum({ used, cells }, count) {
  return usesCells(count) ? `${used} = ${sum(cells, "units")} − ${sum(cells, "expired")}` : `${used}`;
}

/** Describes what happens to the oldest cell or time in a sample, with its numbers. */
export function workedOldest({ at_us: at, state: { cell_us: step, pace, cells } }, { count, window_us: window }) {
  const oldest = cells[0];
  if (!oldest) return usesCells(count) ? "no cell holds units" : "none";
  const { start_us: start, units, lag, expired } = oldest;
  if (!usesCells(count)) return `${time(start)}, expires at ${time(start + Math.ceil(window / step) * step)}`;
  const outside = at - window - start;
  if (outside <= 0) return `${counted(units)}, lag ${lag}; leaves the window from ${time(start + window)}`;
  const paced = Math.floor((pace * outside) / window);
  // The engine also caps this at the cell's units. The cap has no effect below 225 units: a last
  // hit is kept to 1/225 of the window, and the pace brings at most one unit in that time.
  const difference = paced < lag ? `max(0, ${paced} − ${lag})` : `${paced} − ${lag}`;
  return `${expired} = ${difference}: the limit's pace brings ${counted(paced)} in the ${time(outside)} that left the window`;
}

/** Describes the strip for screen readers. */
export function describe({ cells }, count) {
  if (!cells.length) return usesCells(count) ? "No cell holds units." : "No time is held.";
  const each = usesCells(count)
    ? ({ start_us: start, units, expired, lag }) => `from ${time(start)}: ${counted(units)}, ${expired} expired, lag ${lag}`
    : ({ start_us: start, units }) => `${time(start)}: ${counted(units)}`;
  return `${usesCells(count) ? "Cells" : "Times"}: ${cells.map(each).join("; ")}.`;
}

/** Returns the strip below `base`: a path per kind of mark, and labels. */
export function strip(state, { count, window_us: window }, view, base) {
  const scale = view.width / (view.to - view.from);
  const x = (us) => (us - view.from) * scale;
  const shown = state.cells.filter((cell) => cell.last_hit_us >= view.from || cell.start_us + state.cell_us > view.from);
  return usesCells(count) ? cellMarks({ ...state, shown }, { x, scale, window, view, base }) : logMarks(shown, { x, base });
}

function cellMarks({ shown, cell_us: width_us, pace }, { x, scale, window, view, base }) {
  const marks = { grid: "", counts: "", expired: "", lag: "", hits: "", labels: [] };
  // Without units the engine reports no cells.
  if (!shown.length) return marks;
  for (let at = Math.ceil(Math.max(0, view.from) / width_us) * width_us; at <= view.to; at += width_us) {
    marks.grid += `M${x(at).toFixed(1)} ${base + BAR_TOP}V${base + BAR_BASE}`;
  }
  const fullest = Math.max(...shown.map(({ units }) => units));
  const height = (units) => (units / fullest) * (BAR_BASE - BAR_TOP);
  const width = width_us * scale;
  for (const { start_us: start, last_hit_us: hit, units, lag, expired } of shown) {
    const bar = (low, high) => (high > low
      ? `M${(x(start) + 1).toFixed(1)} ${(base + BAR_BASE - height(high)).toFixed(1)}h${Math.max(1, width - 2).toFixed(1)}v${height(high - low).toFixed(1)}h${(-Math.max(1, width - 2)).toFixed(1)}z`
      : "");
    marks.counts += bar(0, units - expired);
    marks.expired += bar(units - expired, units);
    marks.hits += `M${x(hit).toFixed(1)} ${base + BAR_TOP - 2}V${base + BAR_BASE + 1}`;
    if (lag) marks.lag += `M${x(start).toFixed(1)} ${base + LAG}h${Math.min(width, ((lag * window) / pace) * scale).toFixed(1)}`;
    const label = (y, text, name) => marks.labels.push({ x: (x(start) + width / 2).toFixed(1), y: base + y, text, name });
    if (width >= NUMBER_WIDTH) label(UNITS_TEXT, String(units), "units");
    if (lag && width >= LAG_WIDTH) label(LAG_TEXT, `lag ${lag}`, "lag-text");
  }
  return marks;
}

function logMarks(times, { x, base }) {
  const marks = { grid: "", counts: "", expired: "", lag: "", hits: "", labels: [] };
  let free = -Infinity;
  for (const { start_us: at, units } of times) {
    marks.hits += `M${x(at).toFixed(1)} ${base + BAR_TOP}V${base + BAR_BASE}`;
    if (x(at) < free) continue;
    marks.labels.push({ x: x(at).toFixed(1), y: base + UNITS_TEXT, text: String(units), name: "units" });
    free = x(at) + NUMBER_WIDTH;
  }
  return marks;
}
