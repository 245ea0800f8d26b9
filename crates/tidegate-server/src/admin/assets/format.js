// Formatting of numbers, and rows of tables. External values (keys, routes, names)
// are only set as text.
"use strict";

export function short(n) {
  if (n >= 1e9) return `${(n / 1e9).toFixed(1)}G`;
  if (n >= 1e6) return `${(n / 1e6).toFixed(1)}M`;
  if (n >= 1e4) return `${(n / 1e3).toFixed(1)}k`;
  return whole(n);
}

export const whole = (n) => n.toLocaleString("en");

/** Returns `1 connection` or `2 connections`. */
export const counted = (n, noun) => `${whole(n)} ${noun}${n === 1 ? "" : "s"}`;

export function rate(n) {
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(1) : short(Math.round(n));
}

export function seconds(s) {
  if (s < 1e-6) return `${Math.round(s * 1e9)} ns`;
  if (s < 1e-3) return `${+(s * 1e6).toPrecision(3)} µs`;
  if (s < 1) return `${+(s * 1e3).toPrecision(3)} ms`;
  return `${+s.toPrecision(3)} s`;
}

export function wait(ms) {
  if (ms === null) return "never";
  return ms < 1000 ? `${Math.ceil(ms)} ms` : ago(ms / 1000);
}

export function ago(s) {
  if (s < 120) return `${Math.max(0, Math.ceil(s))} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

/** Returns a time of day on a 24-hour clock, in the zone of the browser. */
export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

/** Returns `1, 2 and 3`. Of more than `most` items, the last ones are only counted: `1, 2 and 5 more`. */
export function listed(items, most) {
  const shown = items.length > most ? [...items.slice(0, most - 1), `${items.length - most + 1} more`] : items;
  return shown.length > 1 ? `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}` : shown.join("");
}

export function element(tag, kind, text) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

export const cell = (text, kind) => element("td", kind, text);

export function row(...cells) {
  const tr = document.createElement("tr");
  tr.append(...cells);
  return tr;
}

/** Labels the cells of a row with the headings of its table, which narrow windows show in each row. */
export function labelled(table, tr) {
  const head = table.tHead.rows[0];
  [...tr.cells].forEach((td, index) => {
    if (td.colSpan === 1) td.dataset.label = head.cells[index].textContent;
    td.setAttribute("role", "cell");
  });
  tr.setAttribute("role", "row");
  return tr;
}

/** Returns a bar that is full at 1. */
export function bar(share, kind) {
  const outer = element("span", "bar");
  const inner = element("i", kind);
  inner.style.transform = `scaleX(${Math.min(1, Math.max(0, share))})`;
  outer.append(inner);
  return outer;
}

/** Returns rows of a name and a value. */
export function pairs(list) {
  return list.flatMap(([name, value, alarm]) => [element("dt", "", name), element("dd", alarm ? "alarm" : "", value)]);
}

export const usedShare = ({ capacity, remaining }) => (capacity ? Math.min(1, Math.max(0, 1 - remaining / capacity)) : 1);

const conditionOf = (override) => `if ${override.when.join(" and ")}`;

/** Shows what a key has left of a limit of the policy or of one of its overrides. */
export function limitRow(limit, override) {
  const name = cell(limit.text, "nowrap");
  if (override) {
    const observed = override.mode === "observe" ? ": only observed" : "";
    name.append(element("div", "quiet", conditionOf(override) + observed));
  }
  const used = cell("", "used");
  used.append(bar(usedShare(limit), limit.allowed ? "" : "bad"));
  return row(name, used, cell(`${short(limit.remaining)} of ${short(limit.capacity)}`, "num"),
    cell(limit.allowed ? "now" : wait(limit.retry_after_ms), "num"),
    cell(limit.reset_after_ms ? wait(limit.reset_after_ms) : "now", "num"));
}

// Marks a limit that several overrides have.
const OR_OTHERS = " or others";

/** Returns the limits of a policy and of its overrides, by text: equal limits have one count. */
export function distinctLimits({ limits, overrides = [] }) {
  const all = new Map(limits.map((limit) => [limit.text, { limit, name: limit.text, isOwn: true }]));
  for (const override of overrides) {
    for (const limit of override.limits) {
      const same = all.get(limit.text);
      if (!same) all.set(limit.text, { limit, name: `${limit.text} ${conditionOf(override)}` });
      else if (!same.isOwn && !same.name.endsWith(OR_OTHERS)) same.name += OR_OTHERS;
    }
  }
  return all;
}
