// Draws the lanes: one per algorithm, all with the same two windows.
//
// Within a window only the dashed box moves, the dots do not. So all dots of a lane are two
// SVG paths, which are rewritten when a request is added or a window ends. The box is a
// separate element that the compositor shifts: a frame costs one transform per lane, whether
// it has 5 dots or 500.
"use strict";

import { ALGORITHMS, equals, rule } from "./algorithms.js";
import { CELLS_HEIGHT, describe, strip, workedOldest } from "./cells.js";

const SVG = "http://www.w3.org/2000/svg";
const TOP = 22;        // space for the name of the box
const BASE = 112;      // base line of the dots
const STRIP = 8;       // height of the strip below the dots when it is empty
const WEIGHT = 28;     // height of the strip with the counts and the weight of sliding-counter
const NAMES = 22;      // space for the names and times of the windows

/** Pixels that the number above a pile needs. */
const PILE_WIDTH = 32;
/** Width of a drawing in pixels from which there is space for long labels. */
const WIDE = 480;
/** Width of a drawing in pixels from which the division of the weight fits below the previous window. */
const WIDE_FOR_WEIGHT = 720;

const OVER_TWO_WINDOWS = "Requests over two windows";

export function seconds(us, exact) {
  if (us === null) return "never";
  if (us === 0) return "now";
  if (exact) return `${(us / 1e6).toFixed(6).replace(/0{1,4}$/, "")} s`;
  return `${(Math.ceil(us / 1e3) / 1e3).toFixed(us < 1e7 ? 3 : 2)} s`;
}

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawn(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Returns a line of text in the drawing. */
function text({ x, y, text: shown, name, anchor = "middle" }) {
  const made = drawn("text", { x, y, "text-anchor": anchor, class: name });
  made.textContent = shown;
  return made;
}

/** Sets a text if it changed: setting the same text would cause another layout. */
export function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Changes the label of a figure. */
function relabel(value, text) {
  set(value.closest("div").querySelector("dt"), text);
}

/** Returns the number of events at each time. */
function burstsOf(events) {
  const bursts = new Map();
  for (const { at } of events) bursts.set(at, (bursts.get(at) ?? 0) + 1);
  return bursts;
}

/**
 * Returns the positions of the dots: along time, stacked where they would overlap. A burst that is
 * higher than the track is a pile: its dots overlap, so that all of them are at their time.
 */
export function arrange(events, view) {
  const { from, to, width } = view;
  const first = events.findIndex((event) => event.at >= from);
  const shown = first < 0 ? [] : events.slice(first).filter((event) => event.at < to);
  const bursts = burstsOf(shown);
  const size = shown.length > 300 ? 5 : shown.length > 120 || Math.max(0, ...bursts.values()) > 8 ? 7 : 10;
  const rows = Math.floor((BASE - TOP) / (size + 1));
  const ends = new Array(rows).fill(-Infinity);
  const piles = [];
  const lowest = BASE - size / 2 - 2;
  const points = shown.map(({ at, cost }, index) => {
    const exact = Math.max(size / 2 + 1, ((at - from) / (to - from)) * width);
    const burst = bursts.get(at);
    if (burst > rows) {
      if (piles[piles.length - 1]?.at !== at) piles.push({ at, burst, x: exact, placed: 0 });
      const pile = piles[piles.length - 1];
      const y = lowest - ((BASE - TOP - size - 1) * pile.placed) / (burst - 1);
      pile.placed += 1;
      ends.fill(exact);
      return { index: first + index, x: exact.toFixed(1), y: y.toFixed(1), cost };
    }
    let x = exact;
    let row = ends.findIndex((end) => end + size + 1 <= x);
    if (row < 0) {
      // No free position: next to the dot that was placed longest ago.
      row = ends.indexOf(Math.min(...ends));
      x = Math.min(ends[row] + size + 1, width - size / 2);
    }
    ends[row] = x;
    return { index: first + index, x: x.toFixed(1), y: (lowest - row * (size + 1)).toFixed(1), cost };
  });
  return { points, piles, size };
}

/** The lane of one algorithm. */
export class Lane {
  constructor(algorithm) {
    this.algorithm = algorithm;
    this.kind = ALGORITHMS[algorithm];
    this.hasCells = algorithm === "sliding-window";
    this.hasWeight = algorithm === "sliding-counter";
    this.bottom = BASE + (this.hasCells ? CELLS_HEIGHT : this.hasWeight ? WEIGHT : STRIP);
    this.element = element("article", "lane");
    this.element.dataset.algorithm = algorithm;
    this.element.append(this.#head(), this.#track(), this.#figures());
  }

  #head() {
    const head = element("div", "lane-head");
    const title = element("h2", "", this.algorithm);
    title.id = `lane-${this.algorithm}`;
    this.element.setAttribute("aria-labelledby", title.id);
    this.admitted = element("b", "admitted", "0");
    this.denied = element("b", "denied", "0");
    const tally = element("p", "tally");
    tally.append(this.admitted, " admitted ", this.denied, " denied");
    this.about = element("p", "about");
    head.append(title, this.about, tally);
    return head;
  }

  #track() {
    const track = element("div", this.hasWeight ? "track weighted" : "track");
    this.svg = drawn("svg", { role: "img", height: this.bottom + NAMES, "aria-label": OVER_TWO_WINDOWS });
    this.ground = drawn("g", {});
    this.strip = this.#strip();
    this.dots = drawn("path", { class: "dots" });
    this.heavy = drawn("path", { class: "dots heavy" });
    this.crosses = drawn("path", { class: "crosses" });
    this.pending = drawn("path", { class: "pending" });
    this.piles = drawn("g", {});
    this.svg.append(this.ground, this.strip, this.dots, this.heavy, this.crosses, this.pending, this.piles);
    this.box = element("div", this.kind.slides ? "box" : "now-line");
    this.box.append(element("span", "now", "now"));
    track.append(this.svg);
    if (this.hasWeight) track.append(this.#overlap());
    track.append(this.box);
    return track;
  }

  /** Creates the overlap of the box and the previous window: a second box, clipped to that window. */
  #overlap() {
    const window = element("div", "previous-window");
    this.overlap = element("div", "overlap");
    window.append(this.overlap);
    return window;
  }

  /** Creates the strip below the dots: cells or times of sliding-window, counts of sliding-counter. */
  #strip() {
    const group = drawn("g", { class: "strip" });
    this.labels = drawn("g", {});
    if (!this.hasCells) {
      group.append(this.labels);
      return group;
    }
    const hatch = drawn("pattern", { id: "hatch", width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    hatch.append(drawn("path", { class: "hatch", d: "M1 0V4" }));
    this.marks = {};
    for (const name of ["grid", "counts", "expired", "lag", "hits"]) this.marks[name] = drawn("path", { class: name, d: "" });
    this.marks.expired.setAttribute("fill", "url(#hatch)");
    group.append(hatch, ...Object.values(this.marks), this.labels);
    return group;
  }

  #figures() {
    const figures = element("dl", "figures");
    const put = (name, label, more = "") => {
      const wrap = element("div", name);
      const [entry, value] = [element("dd", ""), element("span", "")];
      entry.append(value, more);
      wrap.append(element("dt", "", label), entry);
      figures.append(wrap);
      return value;
    };
    this.formula = put("formula", "");
    this.rule = element("dd", "rule");
    this.formula.closest("div").append(this.rule);
    this.meter = element("div", "meter");
    this.fill = element("i", "");
    this.meter.append(this.fill);
    this.remaining = put("remaining", "remaining", this.meter);
    this.retry = put("retry", "retry after");
    this.most = put("most", "most in any window");
    if (this.hasCells) this.oldest = put("oldest", "");
    return figures;
  }

  /** Sets the labels that depend on the settings. */
  caption(settings) {
    const { about, formula, oldest } = this.kind.captions(settings.limit);
    set(this.about, about);
    relabel(this.formula, formula);
    set(this.rule, rule(this.algorithm, settings));
    if (this.oldest) relabel(this.oldest, oldest);
  }

  /** Draws the background: the times, and the two windows where the algorithm counts in them. */
  drawBackground(view) {
    const { from, to, width, window } = view;
    const half = width / 2;
    const y = this.bottom + NAMES - 5;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.bottom + NAMES}`);
    const at = (us) => `${+(us / 1e6).toFixed(1)} s`;
    const height = this.bottom + 4;
    const windows = [
      drawn("rect", { class: "current", x: half, y: 0, width: half, height }),
      drawn("path", { class: "boundary", d: `M${half} 0V${height}` }),
      text({ x: half / 2, y, text: width < WIDE ? "previous" : "previous window", name: "name" }),
      text({ x: half * 1.5, y, text: width < WIDE ? "current" : "current window", name: "name" }),
    ];
    this.ground.replaceChildren(
      drawn("rect", { class: "previous", x: 0, y: 0, width, height }),
      ...(this.kind.aligned ? windows : []),
      drawn("path", { class: "base", d: `M0 ${BASE}H${width}` }),
      text({ x: 2, y, text: from < 0 ? "" : at(from), name: "time", anchor: "start" }),
      text({ x: half, y, text: at(from + window), name: "time" }),
      text({ x: width - 2, y, text: at(to), name: "time", anchor: "end" }),
    );
  }

  /** Draws the requests: filled dots were admitted, crosses were denied. */
  place({ points, piles, size }, decisions) {
    const half = size / 2 - 1.5;
    let [dots, heavy, crosses, pending] = ["", "", "", ""];
    for (const { index, x, y, cost } of points) {
      const decision = decisions?.[index];
      if (!decision) pending += `M${x} ${y}h.01`;
      else if (!decision.allowed) crosses += `M${x - half} ${y - half}l${2 * half} ${2 * half}m0 ${-2 * half}l${-2 * half} ${2 * half}`;
      else if (cost > 1) heavy += `M${x} ${y}h.01`;
      else dots += `M${x} ${y}h.01`;
    }
    for (const [path, d] of [[this.dots, dots], [this.heavy, heavy], [this.crosses, crosses], [this.pending, pending]]) {
      path.setAttribute("d", d || "M0 0");
      path.classList.toggle("none", !d);
    }
    for (const path of [this.dots, this.heavy, this.pending]) path.setAttribute("stroke-width", size - 1);
    this.heavy.setAttribute("stroke-width", size + 2);
    this.piles.replaceChildren(...piles.map(({ x, burst }, index) => {
      // Two close piles have their numbers on the outer sides.
      const [before, after] = [x - piles[index - 1]?.x, piles[index + 1]?.x - x];
      const anchor = before < PILE_WIDTH ? "start" : after < PILE_WIDTH ? "end" : "middle";
      return text({ x: x.toFixed(1), y: TOP - 6, text: `×${burst}`, name: "pile", anchor });
    }));
  }

  /** Moves the dashed box, which is the last window up to now, or the line at now. */
  moveBox(x) {
    for (const moved of [this.box, this.overlap]) {
      if (moved) moved.style.transform = `translateX(${x.toFixed(2)}px)`;
    }
  }

  showCounts(played) {
    set(this.admitted, String(played.admitted));
    set(this.denied, String(played.denied));
    const over = played.most_in_window > played.count;
    set(this.most, `${played.most_in_window}${over ? ", over the limit" : ""}`);
    this.most.classList.toggle("over", over);
  }

  /** Shows the numbers of the engine at one time. Most frames show the same sample as the previous one. */
  show(sample, played, exact, view) {
    if (sample === this.shown?.sample && exact === this.shown.exact && view === this.shown.view) return;
    this.shown = { sample, exact, view };
    const { state } = sample;
    set(this.formula, this.kind.worked(state, played.count));
    const most = Math.max(1, played.count);
    set(this.remaining, `${sample.remaining} of ${played.count}`);
    this.fill.style.transform = `scaleX(${Math.min(1, sample.remaining / most)})`;
    set(this.retry, seconds(sample.retry_after_us, exact));
    this.retry.classList.toggle("wait", sample.retry_after_us !== 0);
    if (this.hasCells) this.#showCells(sample, played, view);
    if (this.hasWeight) this.#showWeight(state, played, view);
  }

  /** Writes the two counts below their windows, and the weight as the overlap that it is. */
  #showWeight({ previous, current, weight }, { window_us: window }, { width }) {
    const [seconds, part, shown] = [window / 1e6, ((weight * window) / 1e6).toFixed(3), weight.toFixed(3)];
    const [left, right] = width < WIDE_FOR_WEIGHT
      ? [`prev ${previous}, weight ${shown}`, `curr ${current}`]
      : [`prev = ${previous}, weight = ${part} s in the box ÷ ${seconds} s ${equals(part, shown * seconds)} ${shown}`, `curr = ${current}`];
    const y = BASE + WEIGHT - 9;
    this.labels.replaceChildren(
      text({ x: width / 4, y, text: left, name: "count" }), text({ x: (3 * width) / 4, y, text: right, name: "count" }));
  }

  /** Draws the cells or times below the dots, and describes what happens to the oldest. */
  #showCells(sample, played, view) {
    set(this.oldest, workedOldest(sample, played));
    const key = JSON.stringify([sample.state, played.count, played.window_us, view]);
    if (key === this.stripKey) return;
    this.stripKey = key;
    this.svg.setAttribute("aria-label", `${OVER_TWO_WINDOWS}. ${describe(sample.state, played.count)}`);
    const { labels, ...paths } = strip(sample.state, played, view, BASE);
    for (const [name, d] of Object.entries(paths)) this.marks[name].setAttribute("d", d);
    this.labels.replaceChildren(...labels.map(text));
  }
}
