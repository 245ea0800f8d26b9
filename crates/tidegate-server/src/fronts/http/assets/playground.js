// The playground: a separate clock, requests at its times, and the engine's answers to them.
//
// Every call of the engine contains all requests since the last reset, and the times at
// which its states are to be sampled: from now to a few seconds ahead. Between two calls the
// page shows the current sample. All drawn values come from the engine. The page itself only
// computes where windows begin, to draw them, and the rate of a limit, for the formula of
// sliding-window (cells.js).
"use strict";

import { MAX_EVENTS, NAMES, BOUNDS, clamp, limitTexts, read, write } from "./settings.js";
import { Unauthorized, keepToken, play } from "./engine.js";
import { Lane, arrange, set } from "./timeline.js";
import { ALGORITHMS } from "./algorithms.js";
import { usesCells } from "./cells.js";
import { lessons } from "./lessons.js";

const SAMPLE_MS = 50;         // interval between samples, in real time
const SAMPLES = 64;           // samples per call: about three seconds
const AHEAD_MS = 800;         // remaining samples below which more are requested
const LONGEST_FRAME_MS = 250; // a page in the background does not catch up
const RETRY_MS = 1500;        // delay after the server did not answer
const SCRIPT_MS = 3500;       // real time for a window while an experiment runs
const CALM_MS = 250;          // between frames with prefers-reduced-motion
const READY = "Ready: send a request.";

const $ = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const initial = read(location.search);
let settings = initial.settings;
let events = initial.events;  // {at, cost}: at in microseconds, in order
let now = initial.at;         // microseconds
let playing = events.length === 0;
let steadyNext = null;        // when the next steady request is due
let lanes = [];
let answer = null;            // the last answer of the engine, with its request
let view = null;              // the visible time range and its width
let dirty = true;             // whether dots must be placed again
let script = null;            // while an experiment runs: time advances to a target and stops there
let run = 0;                  // number of the experiment, so that an interrupted one ends
let resets = 0;               // number of resets, so that late answers are dropped

const windowUs = () => settings.window * 1e6;
const windowIndex = () => Math.floor(now / windowUs());
const pace = () => script?.pace ?? settings.speed;

// ---- calls of the engine

let pending = null;
let retryAt = 0;              // after an error: time of the next attempt

/** Calls the engine until its answer includes all requests. */
function refresh() {
  if (pending) {
    pending.again = true;
    return pending.done;
  }
  const mine = { again: false };
  mine.done = (async () => {
    try {
      do {
        mine.again = false;
        await callEngine();
      } while (mine.again);
    } catch (error) {
      showError(error);
    } finally {
      pending = null;
    }
  })();
  pending = mine;
  return mine.done;
}

async function callEngine() {
  const from = Math.floor(now);
  const step = Math.max(1, Math.round(pace() * SAMPLE_MS * 1000));
  const count = playing && pace() > 0 ? SAMPLES : 1;
  const question = {
    limits: limitTexts(settings),
    events: events.map(({ at, cost }) => ({ at_us: at, cost })),
    samples: Array.from({ length: count }, (_, index) => from + index * step),
    cost: settings.cost,
  };
  const [mine, key] = [resets, JSON.stringify(question.limits)];
  const limits = await play(question);
  if (mine !== resets || key !== JSON.stringify(limitTexts(settings))) {
    pending.again = true;
    return;
  }
  // The dots stay the same for the same requests and limits.
  dirty ||= answer?.key !== key || answer.events !== question.events.length;
  answer = { limits, key, from, to: question.samples[count - 1], events: question.events.length, step };
  if (question.events.length !== events.length) pending.again = true;
}

function showError(error) {
  if (error instanceof Unauthorized) {
    playing = false;
    $("login").hidden = false;
    $("token").focus();
    return say("This server requires a token.");
  }
  say(error instanceof TypeError ? "The server does not answer; trying again." : error.message);
  retryAt = performance.now() + RETRY_MS;
  setTimeout(refresh, RETRY_MS);
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken($("token").value);
  $("login").hidden = true;
  setPlaying(true);
  refresh();
});

// ---- messages

let flashing = 0;

function say(text, flash = false) {
  const status = $("status");
  status.textContent = text;
  status.classList.toggle("flash", flash);
  clearTimeout(flashing);
  if (flash) flashing = setTimeout(() => status.classList.remove("flash"), 1600);
}

function note(notes) {
  $("notes").hidden = notes.length === 0;
  $("notes").firstElementChild.replaceChildren(...notes.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}

/** Returns the results of the newest `count` requests as text, briefly if all algorithms agree. */
function outcome(count) {
  const passed = answer.limits.map(({ algorithm, decisions }) =>
    ({ algorithm, admitted: decisions.slice(-count).filter((decision) => decision.allowed).length }));
  const same = passed.every(({ admitted }) => admitted === passed[0].admitted);
  return same
    ? `${passed[0].admitted} admitted, ${count - passed[0].admitted} denied.`
    : `admitted by ${passed.map(({ algorithm, admitted }) => `${algorithm} ${admitted}`).join(", ")}.`;
}

// ---- requests

/** Sends requests now. */
async function send(times) {
  const room = MAX_EVENTS - events.length;
  if (room < times) {
    setSteady(false);
    say(`${MAX_EVENTS} requests is the maximum: press Reset to start again.`);
    if (room <= 0) return;
  }
  const at = Math.max(Math.floor(now), events.length ? events[events.length - 1].at : 0);
  const sent = Math.min(times, room);
  for (let count = sent; count > 0; count -= 1) events.push({ at, cost: settings.cost });
  dirty = true;
  const mine = resets;
  await refresh();
  if (mine !== resets) return;
  // Draws first, then describes the result.
  draw();
  if (room >= times && answer) say(`${sent} sent: ${outcome(sent)}`);
}

function setSteady(on) {
  steadyNext = on ? now : null;
  $("steady").setAttribute("aria-pressed", String(on));
  if (on) setPlaying(true);
}

function toggleSteady() {
  setSteady(steadyNext === null);
  say(steadyNext === null ? "Steady requests stopped." : `Sending steadily, ${$("rate").selectedOptions[0].text}.`);
}

function steadyRequests() {
  if (steadyNext === null) return;
  const every = 1e6 / Number($("rate").value);
  let sent = 0;
  for (; steadyNext <= now && events.length < MAX_EVENTS; steadyNext += every, sent += 1) {
    events.push({ at: Math.max(Math.floor(steadyNext), events.length ? events[events.length - 1].at : 0), cost: settings.cost });
  }
  if (events.length >= MAX_EVENTS) return void send(1);
  if (sent) {
    dirty = true;
    refresh();
  }
}

// ---- experiments: time that advances to a target

/** Advances time to `target` and stops there. Returns false if it was interrupted. */
function advanceTo(target) {
  const mine = run;
  const still = () => mine === run;
  if (calm.matches) {
    now = Math.max(now, target);
    script = { target, pace: 0, arrived: still };
    rolledOver();
    return refresh().then(still);
  }
  return new Promise((resolve) => {
    const quick = Math.max(windowUs() / SCRIPT_MS / 1000, 0.05);
    script = { target, pace: quick, arrived: () => resolve(still()) };
    setPlaying(true);
    refresh();
  });
}

/** Cancels a running experiment. */
function cancelExperiment() {
  run += 1;
  const ended = script;
  script = null;
  ended?.arrived();
}

/** Sends requests just before and just after a window boundary. */
async function boundaryAttack(from) {
  const margin = windowUs() / 15;
  let boundary = (Math.floor(from / windowUs()) + 1) * windowUs();
  if (boundary - margin < from) boundary += windowUs();
  const burst = Math.max(1, Math.min(settings.limit, 200));
  say(`Boundary attack: ${burst} just before a window ends, ${burst} just after.`);
  if (!(await advanceTo(boundary - margin))) return;
  await send(burst);
  if (!(await advanceTo(boundary + margin))) return;
  await send(burst);
}

async function attackNow() {
  cancelExperiment();
  const mine = run;
  await boundaryAttack(now);
  if (mine === run) script = null;
  refresh();
}

/** Resets the page for an experiment, with its limit and algorithms. */
function begin({ algorithms, limit = 5 }) {
  settings = { ...settings, limit, window: 15, cost: 1, algorithms };
  showSettings();
  updateAddress();
  reset();
}

const stage = {
  begin,
  send,
  advanceTo,
  boundaryAttack: () => boundaryAttack(now),
  async finish() {
    script = null;
    setPlaying(false);
    await refresh();
    draw();
  },
  /** Shows the result of an experiment next to the lanes. */
  conclude(text, href) {
    const link = Object.assign(document.createElement("a"), { href, textContent: "Why?" });
    $("result").replaceChildren(`${text} `, link);
    $("result").hidden = false;
  },
  /** Returns the answer for one algorithm and its current state, if it includes all requests. */
  found(algorithm) {
    if (answer?.events !== events.length) throw new Error("the engine has not answered");
    const played = answer.limits.find((one) => one.algorithm === algorithm);
    return { ...played, sample: sampleOf(played) };
  },
  run: () => run,
  windowUs,
};

// ---- time

function setPlaying(on) {
  playing = on;
  $("pause").textContent = on ? "Pause" : "Play";
  $("pause").setAttribute("aria-pressed", String(!on));
}

let lastIndex = windowIndex();

/** Starts the next window of the drawing, and announces it if an algorithm counts in such windows. */
function rolledOver() {
  if (windowIndex() === lastIndex) return;
  lastIndex = windowIndex();
  view = null;
  const aligned = settings.algorithms.filter((name) => ALGORITHMS[name].aligned);
  if (!aligned.length) return;
  say(aligned.includes("sliding-counter") ? "↻ A new window begins: curr is now prev." : "↻ A new window begins: the count is 0 again.", true);
}

let lastFrame = performance.now();

function frame(time) {
  const real = Math.min(LONGEST_FRAME_MS, Math.max(0, time - lastFrame));
  if (calm.matches && time - lastFrame < CALM_MS) return void requestAnimationFrame(frame);
  lastFrame = time;
  if (playing) {
    const next = now + real * 1000 * pace();
    now = script ? Math.max(now, Math.min(script.target, next)) : next;
    if (script && now >= script.target && script.pace > 0) {
      script.pace = 0;
      script.arrived();
    }
    steadyRequests();
    rolledOver();
    const wanted = now + AHEAD_MS * 1000 * pace();
    const mayCall = !pending && $("login").hidden && time > retryAt;
    if (mayCall && (!answer || wanted > answer.to)) refresh();
  }
  draw();
  requestAnimationFrame(frame);
}

// ---- drawing

function measure() {
  const width = lanes[0]?.svg.clientWidth || 600;
  const from = (windowIndex() - 1) * windowUs();
  view = { from, to: from + 2 * windowUs(), width, window: windowUs() };
  lanes.forEach((lane) => lane.drawBackground(view));
  dirty = true;
}

/** Returns the newest sample that is not in the future. */
function sampleOf(played) {
  const index = Math.floor((now - answer.from) / answer.step);
  return played.samples[Math.min(Math.max(0, index), played.samples.length - 1)];
}

function draw() {
  if (!view) measure();
  if (dirty) {
    const places = arrange(events, view);
    lanes.forEach((lane, index) => {
      const played = answer?.limits[index];
      lane.place(places, played?.decisions);
      if (played) lane.showCounts(played);
    });
    dirty = false;
    showTable();
  }
  const x = ((now - windowUs() - view.from) / (view.to - view.from)) * view.width;
  set($("clock"), `${(now / 1e6).toFixed(1)} s`);
  lanes.forEach((lane, index) => {
    lane.moveBox(x);
    const played = answer?.limits[index];
    if (!played || played.algorithm !== lane.algorithm) return;
    lane.show(sampleOf(played), played, !playing, view);
  });
}

function showTable() {
  if (!$("table").open) return;
  const cell = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
  $("table-head").replaceChildren(...["Time", "Cost", ...settings.algorithms].map((text) => cell("th", text)));
  const rows = events.slice(-50).map((event, place) => {
    const index = Math.max(0, events.length - 50) + place;
    const row = document.createElement("tr");
    const results = (answer?.limits ?? []).map(({ decisions }) => {
      const decision = decisions[index];
      return decision ? (decision.allowed ? "admitted" : "denied") : "…";
    });
    row.append(...[`${(event.at / 1e6).toFixed(3)} s`, String(event.cost), ...results].map((text) => cell("td", text)));
    return row;
  });
  $("table-rows").replaceChildren(...rows.reverse());
}

// ---- settings

function showSettings() {
  for (const name of Object.keys(BOUNDS)) $(name).value = settings[name];
  $("speed").value = String(settings.speed);
  for (const box of $("algorithms").querySelectorAll("input")) box.checked = settings.algorithms.includes(box.value);
  $("legend-window").textContent = `the last ${settings.window} s, up to now`;
  const drawn = {
    box: settings.algorithms.some((name) => ALGORITHMS[name].slides),
    line: settings.algorithms.some((name) => !ALGORITHMS[name].slides),
    overlap: settings.algorithms.includes("sliding-counter"),
    cells: settings.algorithms.includes("sliding-window") && usesCells(settings.limit),
    times: settings.algorithms.includes("sliding-window") && !usesCells(settings.limit),
  };
  for (const item of document.querySelectorAll(".legend [data-of]")) item.hidden = !drawn[item.dataset.of];
  buildLanes();
}

/** Writes the settings to the address. The requests of a link are removed, because they no longer apply. */
function updateAddress() {
  history.replaceState(null, "", `?${write(settings).query}`);
}

function buildLanes() {
  const kept = new Map(lanes.map((lane) => [lane.algorithm, lane]));
  lanes = settings.algorithms.map((algorithm) => kept.get(algorithm) ?? new Lane(algorithm));
  lanes.forEach((lane) => lane.caption(settings));
  $("lanes").replaceChildren(...lanes.map((lane) => lane.element));
  answer = null;
  view = null;
}

/** Plays the same requests under changed settings. The old results no longer apply. */
async function changed() {
  cancelExperiment();
  $("result").hidden = true;
  const notes = [];
  for (const name of Object.keys(BOUNDS)) settings[name] = clamp(name, $(name).value.trim(), settings[name], notes);
  const chosen = [...$("algorithms").querySelectorAll("input:checked")].map((box) => box.value);
  if (chosen.length) settings.algorithms = chosen;
  else notes.push("At least one algorithm is needed: the last one stays.");
  note(notes);
  showSettings();
  updateAddress();
  lastIndex = windowIndex();
  say(READY);
  const mine = resets;
  await refresh();
  const count = events.length;
  if (mine !== resets || !answer || !count) return;
  say(`${settings.limit} per ${settings.window} s, the same ${count === 1 ? "request" : `${count} requests`}: ${outcome(count)}`);
}

function reset() {
  resets += 1;
  cancelExperiment();
  events = [];
  now = 0;
  lastIndex = 0;
  answer = null;
  view = null;
  setSteady(false);
  $("result").hidden = true;
  say(READY);
  refresh();
}

function buildChoices() {
  $("algorithms").replaceChildren(...NAMES.map((name) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: name });
    label.className = "chip";
    label.append(box, name);
    return label;
  }));
}

async function link() {
  const { query, whole } = write(settings, events, now);
  history.replaceState(null, "", `?${query}`);
  const what = whole ? "settings and requests" : "settings; there are too many requests for a link";
  try {
    await navigator.clipboard.writeText(location.href);
    say(`Copied: a link to these ${what}.`);
  } catch {
    say(`The address of this page now holds these ${what}.`);
  }
}

// ---- controls

$("send").addEventListener("click", () => send(1));
$("burst").addEventListener("click", () => send(8));
$("attack").addEventListener("click", attackNow);
$("steady").addEventListener("click", toggleSteady);
$("pause").addEventListener("click", () => {
  setPlaying(!playing);
  refresh();
});
$("step").addEventListener("click", () => {
  cancelExperiment();
  setPlaying(false);
  now = Math.floor(now) + Math.round(windowUs() / 15);
  steadyRequests();
  rolledOver();
  refresh().then(draw);
});
$("speed").addEventListener("change", () => {
  settings.speed = Number($("speed").value);
  updateAddress();
  refresh();
});
$("reset").addEventListener("click", () => {
  reset();
  updateAddress();
  setPlaying(true);
});
$("settings").addEventListener("change", changed);
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("link").addEventListener("click", link);
$("table").addEventListener("toggle", showTable);
new ResizeObserver(() => { view = null; }).observe($("lanes"));

buildChoices();
note(initial.notes);
showSettings();
setPlaying(playing);
lessons(stage);
lastIndex = windowIndex();
if (events.length) say(`${events.length} requests of the link, up to ${(now / 1e6).toFixed(1)} s: press Play to continue.`);
refresh();
requestAnimationFrame(frame);
