// The settings, their bounds, and their representation in the address of the page.
"use strict";

import { ALGORITHMS } from "./algorithms.js";

/** The names of the algorithms, in the order of the lanes. */
export const NAMES = Object.keys(ALGORITHMS);

/** Bounds of what a timeline can show; the engine accepts far more. */
export const BOUNDS = {
  limit: { least: 0, most: 200, name: "limit" },
  window: { least: 1, most: 600, name: "window" },
  cost: { least: 1, most: 100, name: "cost" },
};
/** The maximum number of events that the endpoint accepts. */
export const MAX_EVENTS = 1000;
/** The latest time in a link: a hundred of the longest windows. */
const MAX_AT_US = 100 * 600 * 1e6;
/** Maximum number of request groups in a link; some programs reject longer addresses. */
const MAX_GROUPS = 250;

export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];

export function defaults() {
  return {
    limit: 5, window: 15, cost: 1, speed: 1,
    algorithms: ["fixed-window", "sliding-counter", "sliding-window"],
  };
}

/** Returns the limits in the format of the engine. */
export function limitTexts(settings) {
  return settings.algorithms.map((algorithm) => `${settings.limit} per ${settings.window}s ${algorithm}`);
}

/** Returns a whole number within its bounds, and adds a note if the given value differs. */
export function clamp(name, text, fallback, notes) {
  const { least, most } = BOUNDS[name];
  const shown = text.length > 24 ? `${text.slice(0, 24)}…` : text;
  if (text === "") {
    notes.push(`${name} is empty: ${fallback} is used.`);
    return fallback;
  }
  if (!/^-?\d+$/.test(text)) {
    const unit = name === "window" ? " of seconds" : "";
    notes.push(`${name} “${shown}” is not a whole number${unit}: ${fallback} is used.`);
    return fallback;
  }
  const number = Number(text);
  const used = Math.min(most, Math.max(least, number));
  if (used !== number) notes.push(`${name} ${shown} is out of range (${least} to ${most}): ${used} is used.`);
  return used;
}

/** Reads the settings in the address of the page, with notes on invalid values. */
export function read(query) {
  const settings = defaults();
  const notes = [];
  let events = [];
  let at = 0;
  for (const [name, value] of new URLSearchParams(query)) {
    if (name === "window") settings.window = clamp(name, value.replace(/s$/, ""), settings.window, notes);
    else if (Object.hasOwn(BOUNDS, name)) settings[name] = clamp(name, value, settings[name], notes);
    else if (name === "algorithms") settings.algorithms = readAlgorithms(value, settings.algorithms, notes);
    else if (name === "speed") settings.speed = readSpeed(value, notes);
    else if (name === "events") events = readEvents(value, notes);
    else if (name === "at") at = readAt(value, notes);
    else notes.push(`“${name.slice(0, 24)}” is not a setting: it is left out.`);
  }
  const last = events.length ? events[events.length - 1].at : 0;
  return { settings, events, at: Math.max(at, last), notes: few(notes) };
}

/** Limits the number of notes: a link can contain any number of errors. */
function few(notes) {
  const MOST = 12;
  const rest = notes.length - MOST;
  return rest > 0 ? [...notes.slice(0, MOST), `And ${rest} more like these.`] : notes;
}

function readAt(value, notes) {
  const at = /^\d{1,20}$/.test(value) ? Number(value) : NaN;
  if (at <= MAX_AT_US) return at;
  const used = at > MAX_AT_US ? MAX_AT_US : 0;
  notes.push(`The time “${value.slice(0, 24)}” of the link is not one from 0 to ${MAX_AT_US} µs: ${used} is used.`);
  return used;
}

function readAlgorithms(value, fallback, notes) {
  const names = value.split(",");
  const known = NAMES.filter((name) => names.includes(name));
  const unknown = names.filter((name) => !NAMES.includes(name));
  if (unknown.length) notes.push(`“${unknown[0].slice(0, 24)}” is not an algorithm: use ${NAMES.join(", ")}.`);
  return known.length ? known : fallback;
}

function readSpeed(value, notes) {
  const speed = SPEEDS.find((one) => String(one) === value);
  if (speed === undefined) notes.push(`speed “${value.slice(0, 24)}” is not one of ${SPEEDS.join(", ")}: 1 is used.`);
  return speed ?? 1;
}

/** Reads `at`, `at*times` or `at*times*cost`, separated by dots; `at` is in microseconds. */
function readEvents(value, notes) {
  const events = [];
  let total = 0;
  for (const group of value.split(".")) {
    const parts = /^(\d{1,14})(?:\*(\d{1,4}))?(?:\*(\d{1,3}))?$/.exec(group);
    const at = parts ? Number(parts[1]) : NaN;
    const times = Number(parts?.[2] ?? 1);
    const cost = Number(parts?.[3] ?? 1);
    if (!(at <= MAX_AT_US) || times < 1 || cost < 1 || cost > BOUNDS.cost.most) {
      notes.push(`A request “${group.slice(0, 24)}” of the link is invalid: it is left out.`);
      continue;
    }
    total += times;
    for (let left = Math.min(times, MAX_EVENTS - events.length); left > 0; left -= 1) events.push({ at, cost });
  }
  if (total > MAX_EVENTS) notes.push(`The link has ${total} requests: the first ${MAX_EVENTS} are used.`);
  return events.sort((one, other) => one.at - other.at);
}

/** Returns the address for these settings, and for the requests if they fit. */
export function write(settings, events = [], at = 0) {
  const query = new URLSearchParams({
    limit: settings.limit, window: `${settings.window}s`,
    cost: settings.cost, algorithms: settings.algorithms.join(","), speed: settings.speed,
  });
  const groups = [];
  for (const event of events) {
    const last = groups[groups.length - 1];
    if (last && last.at === event.at && last.cost === event.cost) last.times += 1;
    else groups.push({ ...event, times: 1 });
  }
  if (groups.length && groups.length <= MAX_GROUPS) {
    query.set("at", Math.floor(at));
    query.set("events", groups.map(({ at: then, times, cost }) =>
      cost > 1 ? `${then}*${times}*${cost}` : times > 1 ? `${then}*${times}` : `${then}`).join("."));
  }
  const whole = groups.length <= MAX_GROUPS;
  return { query: query.toString().replaceAll("%2C", ",").replaceAll("%2A", "*"), whole };
}
