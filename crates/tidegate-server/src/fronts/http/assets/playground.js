// The playground: a clock of its own, requests on it, and what the engine says of them.
//
// All requests since the last reset go to the engine with every question, with the times
// at which its states are to be shown: from now on, a few seconds ahead. Between two
// questions the page shows the sample of the moment. What is drawn is always the
// engine's; the page knows where windows begin, to draw them, and a limit's pace, to fill in
// the formula of sliding-window (cells.js).
"use strict";

import { MAX_EVENTS, ALGORITHMS, BOUNDS, clamp, limitTexts, read, write } from "./settings.js";
import { Unauthorized, keepToken, play } from "./engine.js";
import { Lane, arrange, set } from "./timeline.js";
import { usesCells } from "./cells.js";
import { lessons } from "./lessons.js";

const SAMPLE_MS = 50;         // numbers change so often, in real time
const SAMPLES = 64;           // asked for at once: some three seconds
const AHEAD_MS = 800;         // when so little is left, more is asked for
const LONGEST_FRAME_MS = 250; // a page in the background does not catch up
const RETRY_MS = 1500;        // after the server did not answer
const SCRIPT_MS = 3500;       // real time for a window while an experiment runs
const CALM_MS = 250;          // between frames for those who want less motion

const $ = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const asked = read(location.search);
let settings = asked.settings;
let events = asked.events;    // {at, cost}: at in microseconds, in order
let now = asked.at;           // microseconds
let playing = events.length === 0;
let steadyNext = null;        // when the next steady request is due
let lanes = [];
let answer = null;            // the engine's last, with what it was asked
let view = null;              // what of time is shown, and how wide
let dirty = true;             // dots must be placed anew
let script = null;            // while an experiment runs, time goes to a target and stands there
let run = 0;                  // counts experiments, so that one that was overtaken ends
let world = 0;                // counts resets, so that what is late is dropped

const windowUs = () => settings.window * 1e6;
const windowIndex = () => Math.floor(now / windowUs());
const pace = () => script?.pace ?? settings.speed;

// ---- asking the engine

let asking = null;
let restUntil = 0;            // after trouble: nobody is asked before

/** Asks until the answer is about all there is. */
function refresh() {
  if (asking) {
    asking.again = true;
    return asking.done;
  }
  const mine = { again: false };
  mine.done = (async () => {
    try {
      do {
        mine.again = false;
        await askOnce();
      } while (mine.again);
    } catch (error) {
      trouble(error);
    } finally {
      asking = null;
    }
  })();
  asking = mine;
  return mine.done;
}

async function askOnce() {
  const from = Math.floor(now);
  const step = Math.max(1, Math.round(pace() * SAMPLE_MS * 1000));
  const count = playing && pace() > 0 ? SAMPLES : 1;
  const question = {
    limits: limitTexts(settings),
    events: events.map(({ at, cost }) => ({ at_us: at, cost })),
    samples: Array.from({ length: count }, (_, index) => from + index * step),
    cost: settings.cost,
  };
  const [mine, key] = [world, JSON.stringify(question.limits)];
  const limits = await play(question);
  if (mine !== world || key !== JSON.stringify(limitTexts(settings))) {
    asking.again = true;
    return;
  }
  // The same requests under the same limits have the same dots.
  dirty ||= answer?.key !== key || answer.events !== question.events.length;
  answer = { limits, key, from, to: question.samples[count - 1], events: question.events.length, step };
  if (question.events.length !== events.length) asking.again = true;
}

function trouble(error) {
  if (error instanceof Unauthorized) {
    playing = false;
    $("login").hidden = false;
    $("token").focus();
    return say("This server wants a token.");
  }
  say(error instanceof TypeError ? "The server does not answer; trying again." : error.message);
  restUntil = performance.now() + RETRY_MS;
  setTimeout(refresh, RETRY_MS);
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken($("token").value);
  $("login").hidden = true;
  setPlaying(true);
  refresh();
});

// ---- what is said

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
  $("notes").replaceChildren(...notes.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}

/** What became of the newest `count` requests, in words: briefly where all agree. */
function sayOutcome(count) {
  if (!answer) return;
  const passed = answer.limits.map(({ algorithm, decisions }) =>
    ({ algorithm, admitted: decisions.slice(-count).filter((decision) => decision.allowed).length }));
  const same = passed.every(({ admitted }) => admitted === passed[0].admitted);
  say(same
    ? `${count} sent: ${passed[0].admitted} admitted, ${count - passed[0].admitted} denied.`
    : `${count} sent, admitted by ${passed.map(({ algorithm, admitted }) => `${algorithm}: ${admitted}`).join(", ")}.`);
}

// ---- requests

/** Sends requests now. */
async function send(times) {
  const room = MAX_EVENTS - events.length;
  if (room < times) {
    setSteady(false);
    say(`${MAX_EVENTS} requests are as many as can be replayed: reset to start anew.`);
    if (room <= 0) return;
  }
  const at = Math.max(Math.floor(now), events.length ? events[events.length - 1].at : 0);
  const sent = Math.min(times, room);
  for (let count = sent; count > 0; count -= 1) events.push({ at, cost: settings.cost });
  dirty = true;
  const mine = world;
  await refresh();
  if (mine !== world) return;
  // First what is seen, then what is said about it.
  draw();
  if (room >= times) sayOutcome(sent);
}

function setSteady(on) {
  steadyNext = on ? now : null;
  $("steady").setAttribute("aria-pressed", String(on));
  if (on) setPlaying(true);
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

// ---- experiments: time that runs to a moment

/** Lets time run to `target` and stand there; false if somebody else took over. */
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

/** Ends what runs, if anything does. */
function overtake() {
  run += 1;
  const ended = script;
  script = null;
  ended?.arrived();
}

/** Just before and just after where two windows meet. */
async function boundaryAttack(from) {
  const margin = windowUs() / 15;
  let boundary = (Math.floor(from / windowUs()) + 1) * windowUs();
  if (boundary - margin < from) boundary += windowUs();
  const burst = Math.max(1, Math.min(settings.limit, 200));
  say(`Boundary attack: ${burst} just before the windows meet, ${burst} just after.`);
  if (!(await advanceTo(boundary - margin))) return;
  await send(burst);
  if (!(await advanceTo(boundary + margin))) return;
  await send(burst);
}

async function attackNow() {
  overtake();
  const mine = run;
  await boundaryAttack(now);
  if (mine === run) script = null;
  refresh();
}

/** Resets the page for an experiment, with the limit and algorithms that it is about. */
function begin({ algorithms, limit = 5 }) {
  settings = { ...settings, limit, window: 15, cost: 1, algorithms };
  showSettings();
  remember();
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
  /** Says what came of an experiment, where it was watched. */
  conclude(text, href) {
    const link = Object.assign(document.createElement("a"), { href, textContent: "Why?" });
    $("result").replaceChildren(`${text} `, link);
    $("result").hidden = false;
  },
  /** The engine's answer about one algorithm and its state now, if it is about all requests. */
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

function rolledOver() {
  if (windowIndex() === lastIndex) return;
  lastIndex = windowIndex();
  view = null;
  const counter = answer && settings.algorithms.includes("sliding-counter");
  say(counter ? "↻ Window rolled over: current is now previous." : "↻ Window rolled over.", true);
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
    const mayAsk = !asking && $("login").hidden && time > restUntil;
    if (mayAsk && (!answer || wanted > answer.to)) refresh();
  }
  draw();
  requestAnimationFrame(frame);
}

// ---- drawing

function measure() {
  const width = lanes[0]?.svg.clientWidth || 600;
  const from = (windowIndex() - 1) * windowUs();
  view = { from, to: from + 2 * windowUs(), width, window: windowUs() };
  lanes.forEach((lane) => lane.layGround(view));
  dirty = true;
}

/** The newest sample that is not in the future. */
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
      if (played) lane.tally(played);
    });
    dirty = false;
    showTable();
  }
  const x = ((now - windowUs() - view.from) / (view.to - view.from)) * view.width;
  set($("clock"), `${(now / 1e6).toFixed(1)} s`);
  lanes.forEach((lane, index) => {
    lane.slide(x);
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
    const told = (answer?.limits ?? []).map(({ decisions }) => {
      const decision = decisions[index];
      return decision ? (decision.allowed ? "admitted" : "denied") : "…";
    });
    row.append(...[`${(event.at / 1e6).toFixed(3)} s`, String(event.cost), ...told].map((text) => cell("td", text)));
    return row;
  });
  $("table-rows").replaceChildren(...rows.reverse());
}

// ---- settings

function showSettings() {
  for (const name of Object.keys(BOUNDS)) $(name).value = settings[name];
  $("speed").value = String(settings.speed);
  for (const box of $("algorithms").querySelectorAll("input")) box.checked = settings.algorithms.includes(box.value);
  $("legend-window").textContent = `the last ${settings.window} s`;
  const hasCells = settings.algorithms.includes("sliding-window") && usesCells(settings.limit);
  for (const item of document.querySelectorAll(".legend .of-cells")) item.hidden = !hasCells;
  buildLanes();
}

/** Puts the settings into the address; a link's requests go, because they are others now. */
function remember() {
  history.replaceState(null, "", `?${write(settings).query}`);
}

function buildLanes() {
  const kept = new Map(lanes.map((lane) => [lane.algorithm, lane]));
  lanes = settings.algorithms.map((algorithm) => kept.get(algorithm) ?? new Lane(algorithm));
  lanes.forEach((lane) => lane.caption(settings.limit));
  $("lanes").replaceChildren(...lanes.map((lane) => lane.element));
  answer = null;
  view = null;
}

/** The same requests under other limits. */
function changed() {
  overtake();
  const notes = [];
  for (const name of Object.keys(BOUNDS)) settings[name] = clamp(name, $(name).value.trim() || "nothing", settings[name], notes);
  const chosen = [...$("algorithms").querySelectorAll("input:checked")].map((box) => box.value);
  if (chosen.length) settings.algorithms = chosen;
  else notes.push("At least one algorithm is wanted.");
  note(notes);
  showSettings();
  remember();
  lastIndex = windowIndex();
  refresh();
}

function reset() {
  world += 1;
  overtake();
  events = [];
  now = 0;
  lastIndex = 0;
  answer = null;
  view = null;
  setSteady(false);
  $("result").hidden = true;
  say("Ready: send a request.");
  refresh();
}

function buildChoices() {
  $("algorithms").replaceChildren(...ALGORITHMS.map((name) => {
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
$("steady").addEventListener("click", () => setSteady(steadyNext === null));
$("pause").addEventListener("click", () => {
  setPlaying(!playing);
  refresh();
});
$("step").addEventListener("click", () => {
  overtake();
  setPlaying(false);
  now = Math.floor(now) + Math.round(windowUs() / 15);
  steadyRequests();
  rolledOver();
  refresh().then(draw);
});
$("speed").addEventListener("change", () => {
  settings.speed = Number($("speed").value);
  remember();
  refresh();
});
$("reset").addEventListener("click", () => {
  reset();
  remember();
  setPlaying(true);
});
$("settings").addEventListener("change", changed);
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("link").addEventListener("click", link);
$("table").addEventListener("toggle", showTable);
new ResizeObserver(() => { view = null; }).observe($("lanes"));

buildChoices();
note(asked.notes);
showSettings();
setPlaying(playing);
lessons(stage);
lastIndex = windowIndex();
if (events.length) say(`${events.length} requests of the link, up to ${(now / 1e6).toFixed(1)} s: press Play to go on.`);
refresh();
requestAnimationFrame(frame);
