// Line charts over time, drawn by uPlot, which an earlier script defines as the global `uPlot`.
// The legend is our own: it shows names as text, and its numbers are accessible to screen readers.
"use strict";

import { clock } from "./format.js";

/* global uPlot */

const LEAST_SECONDS = 60;     // minimum time shown, so that the lines of a new server are not stretched
const NAMES = ["--one", "--two", "--three", "--four", "--five", "--six"];
const dark = matchMedia("(prefers-color-scheme: dark)");

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const hasValue = (values) => values.some((value) => Number.isFinite(value));

/** Returns the indexes of values that no line connects to another one, so that they are drawn as points. */
function isolated(values) {
  const known = [...values.keys()].filter((index) => values[index] !== undefined);
  return known.filter((index, at) => values[index] !== null
    && [known[at - 1], known[at + 1]].every((neighbour) => (values[neighbour] ?? null) === null));
}

/** A chart with a few lines, each `{name, color, dashed}`. Without data it shows `empty` instead, and until `draw` is called, that it is loading. */
export class Chart {
  #plot = null;
  #lines = [];
  #times = [];
  #values = [];

  constructor(place, { format, empty, log = false }) {
    this.place = place;
    this.format = format;
    this.empty = empty;
    this.log = log;
    this.area = document.createElement("div");
    this.note = Object.assign(document.createElement("p"), { className: "none", textContent: "Loading." });
    this.legend = document.createElement("ul");
    this.legend.className = "legend";
    place.replaceChildren(this.note, this.area, this.legend);
    this.area.hidden = true;
    dark.addEventListener("change", () => this.#build());
    new ResizeObserver(() => this.#fit()).observe(place);
  }

  /**
   * Draws lines. `times` are seconds in ascending order; `values` has a list for each line, in which
   * null interrupts the line and undefined is a time without a value.
   */
  draw(lines, times, values) {
    // A plot of other lines is discarded even while there is nothing to draw: it cannot take the new values.
    if (JSON.stringify(lines) !== JSON.stringify(this.#lines)) this.#discard();
    [this.#lines, this.#times, this.#values] = [lines, times, values];
    const isEmpty = !values.some(hasValue);
    [this.note.hidden, this.area.hidden, this.legend.hidden] = [!isEmpty, isEmpty, isEmpty];
    this.note.textContent = this.empty;
    if (isEmpty) return;
    if (!this.#plot) return this.#build();
    this.#plot.setData([times, ...values]);
    this.#updateLegend();
  }

  #discard() {
    this.#plot?.destroy();
    this.#plot = null;
  }

  #build() {
    this.#discard();
    if (this.area.hidden) return;
    const [text, grid] = [color("--quiet"), color("--line")];
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const series = this.#lines.map((line, index) => {
      const stroke = color(line.color ?? NAMES[index % NAMES.length]);
      const points = { show: false, size: 7, fill: stroke, filter: (plot, number) => isolated(plot.data[number]) };
      return { stroke, width: 2, dash: line.dashed ? [6, 5] : undefined, points };
    });
    this.#plot = new uPlot({
      width: Math.max(200, this.place.clientWidth), height: this.area.clientHeight || 180,
      legend: { show: false },
      cursor: { y: false, drag: { setScale: false, x: false, y: false } },
      scales: {
        x: { range: (_plot, least, most) => [Math.min(least ?? 0, (most ?? 0) - LEAST_SECONDS), most ?? 0] },
        y: this.log ? { distr: 3 } : { range: (_plot, _least, most) => [0, Math.max(1, (most ?? 0) * 1.1)] },
      },
      axes: [
        { ...axis, values: (_plot, times) => times.map((time) => clock(time * 1000)), space: 90, size: 30 },
        { ...axis, values: (_plot, values) => values.map((value) => (value === null ? "" : this.format(value))), size: 64, space: 34 },
      ],
      series: [{}, ...series],
      hooks: { setCursor: [() => this.#updateLegend()] },
    }, [this.#times, ...this.#values], this.area);
    this.legend.replaceChildren(...this.#lines.map((line, index) => {
      const item = document.createElement("li");
      const key = Object.assign(document.createElement("i"), { className: line.dashed ? "dashed" : "" });
      key.style.borderColor = series[index].stroke;
      item.append(key, Object.assign(document.createElement("span"), { textContent: line.name }), document.createElement("b"));
      return item;
    }));
    this.#updateLegend();
  }

  /** Shows the values at the cursor, or the newest values. */
  #updateLegend() {
    const at = this.#plot?.cursor?.idx ?? this.#times.length - 1;
    [...this.legend.children].forEach((item, index) => {
      const value = this.#values[index]?.[at];
      item.lastElementChild.textContent = Number.isFinite(value) ? this.format(value) : "–";
    });
  }

  #fit() {
    const width = Math.max(200, this.place.clientWidth);
    if (this.#plot && this.#plot.width !== width) this.#plot.setSize({ width, height: this.#plot.height });
  }
}
