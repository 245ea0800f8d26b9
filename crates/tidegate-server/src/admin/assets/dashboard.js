// The dashboard: asks the admin API for counts, shows what changed between two
// answers, and follows the stream of denials. Whatever came from outside (keys,
// routes, names) is only ever set as text.
"use strict";

const POLL_MS = 2000;      // how often counts are asked for
const TOP_EVERY = 3;       // rankings with every third of those
const CHART_POINTS = 150;  // five minutes
const CHART_LEAST = 30;    // the chart stretches until there are so many
const EVENTS_SHOWN = 100;  // denials kept on the page
const RETRY_MS = 3000;     // after the stream broke
const TOKEN = "tidegate-admin-token";

const $ = (id) => document.getElementById(id);
let last = null;           // the previous counts, with the time they came
let polls = 0;
let loop = 0;              // counts logins, so that an old loop knows it is over
let lastEvent = "";
let paused = false;
const chart = [];

// ---- talking to the server

function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { cache: "no-store", ...options, headers });
}

class Unauthorized extends Error {}

async function askJson(path, options) {
  const response = await ask(path, options);
  if (response.status === 401) throw new Unauthorized();
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail || `status ${response.status}`);
  return body;
}

// ---- numbers for people

function short(n) {
  if (n >= 1e9) return `${(n / 1e9).toFixed(1)}G`;
  if (n >= 1e6) return `${(n / 1e6).toFixed(1)}M`;
  if (n >= 1e4) return `${(n / 1e3).toFixed(1)}k`;
  return n.toLocaleString("en");
}

function rate(n) {
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(1) : short(Math.round(n));
}

function seconds(s) {
  if (s < 1e-6) return `${Math.round(s * 1e9)} ns`;
  if (s < 1e-3) return `${+(s * 1e6).toPrecision(3)} µs`;
  if (s < 1) return `${+(s * 1e3).toPrecision(3)} ms`;
  return `${+s.toPrecision(3)} s`;
}

function wait(ms) {
  if (ms === null) return "never";
  return ms < 1000 ? `${ms} ms` : ago(ms / 1000);
}

function ago(s) {
  if (s < 120) return `${Math.ceil(s)} s`;
  if (s < 7200) return `${Math.ceil(s / 60)} min`;
  if (s < 172800) return `${Math.ceil(s / 3600)} h`;
  return `${Math.ceil(s / 86400)} d`;
}

// ---- building the page

function put(id, text, alarm = false) {
  $(id).textContent = text;
  $(id).classList.toggle("alarm", alarm);
}

function cell(text, kind) {
  const td = document.createElement("td");
  td.textContent = text;
  if (kind) td.className = kind;
  return td;
}

function row(...cells) {
  const tr = document.createElement("tr");
  tr.append(...cells);
  return tr;
}

function fill(id, rows, columns, nothing) {
  const empty = cell(nothing, "empty");
  empty.colSpan = columns;
  $(id).replaceChildren(...(rows.length ? rows : [row(empty)]));
}

// Rebuilt only when the names change, so that a choice somebody is making stays.
function options(id, names, first) {
  const select = $(id);
  const wanted = [...first, ...names];
  const there = Array.from(select.options, (option) => option.value);
  if (JSON.stringify(there) === JSON.stringify(wanted)) return;
  const chosen = select.value;
  select.replaceChildren(...wanted.map((name) => new Option(name || "all", name)));
  if (wanted.includes(chosen)) select.value = chosen;
}

// ---- counts

const place = (series) => JSON.stringify([series.policy, series.limit, series.mode]);
const total = (series) => series.allowed + series.denied + series.would_deny;

function differences(now) {
  const before = new Map((last ? last.series : []).map((one) => [place(one), one]));
  const elapsed = last ? (now.at - last.at) / 1000 : 0;
  const per = (one, count) => {
    const old = before.get(place(one));
    return elapsed && old ? Math.max(0, count(one) - count(old)) / elapsed : 0;
  };
  const sum = (count) => now.series.reduce((all, one) => all + per(one, count), 0);
  return { elapsed, per, sum };
}

function p99(now) {
  const old = last ? last.latency.counts : [];
  let counts = now.latency.counts.map((count, i) => count - (old[i] || 0));
  let recent = true;
  if (!counts.some((count) => count > 0)) [counts, recent] = [now.latency.counts, false];
  const all = counts.reduce((a, b) => a + b, 0);
  if (!all) return ["–", "nothing measured yet"];
  let upTo = 0;
  const index = counts.findIndex((count) => (upTo += count) >= all * 0.99);
  const bound = now.latency.bounds_seconds[index];
  const text = bound === undefined ? "> 1 s" : seconds(bound);
  return [text, recent ? "at most, last seconds" : "at most, since the start"];
}

function showCounts(now) {
  const changes = differences(now);
  const rates = {
    allowed: changes.sum((one) => one.allowed),
    denied: changes.sum((one) => one.denied),
    would: changes.sum((one) => one.would_deny),
    near: changes.sum((one) => one.near),
  };
  if (changes.elapsed) {
    for (const name of ["allowed", "denied", "would", "near"]) put(`tile-${name}`, rate(rates[name]));
    chart.push(rates);
    if (chart.length > CHART_POINTS) chart.shift();
    drawChart();
  }
  const [latency, note] = p99(now);
  put("tile-latency", latency);
  put("tile-latency-note", note);
  showServer(now);
  showPolicies(now, changes);
}

function showServer(now) {
  const { store, reloads } = now;
  const full = store.max_keys ? store.tracked_keys / store.max_keys : 0;
  put("tile-keys", short(store.tracked_keys), full > 0.9);
  put("tile-keys-note", `of at most ${short(store.max_keys)}`);
  $("keys-bar").value = full;
  $("store").hidden = !store.shared;
  if (store.shared) {
    put("tile-store", store.shared.up ? "up" : "down", !store.shared.up);
    put("tile-store-note", `${short(store.shared.failed)} requests failed, in all`);
  }
  put("tile-overflow", short(store.overflowed), store.overflowed > 0);
  put("tile-reloads", reloads.refused ? `${reloads.ok} + ${reloads.refused} refused` : String(reloads.ok), reloads.refused > 0);
  put("tile-reloads-note", `config read ${ago(now.at / 1000 - reloads.last_ok_seconds)} ago`);
  const state = $("state");
  state.textContent = now.ready ? "ready" : "draining";
  state.className = `badge ${now.ready ? "good" : "warn"}`;
  const connections = now.fronts.reduce((all, front) => all + front.connections, 0);
  const memory = now.resident_bytes ? `, ${Math.round(now.resident_bytes / 1048576)} MiB` : "";
  $("facts").textContent =
    `${now.version}, up ${ago(now.at / 1000 - now.started_seconds)}, ${connections} connections${memory}`;
}

function showPolicies(now, changes) {
  const names = [...new Set(now.series.map((one) => one.policy))];
  options("policy", names.filter((name) => !name.startsWith("(")), [""]);
  options("lookup-policy", names.filter((name) => !name.startsWith("(")), []);
  // Names in brackets are ours: shown once there is something to show.
  const shown = now.series.filter((one) => !one.policy.startsWith("(") || total(one) > 0);
  const rows = shown.map((one) => row(
    cell(one.policy, "nowrap"), cell(one.limit, "nowrap"), cell(one.mode),
    cell(rate(changes.per(one, total)), "num"), cell(short(one.allowed), "num"),
    cell(short(one.denied), "num"), cell(short(one.would_deny), "num"),
    cell(short(one.near), "num"), cell(short(one.inexact), "num"),
  ));
  fill("policies", rows, 9, "No policies.");
}

function drawChart() {
  const most = Math.max(1, ...chart.map((point) => Math.max(point.allowed, point.denied, point.would)));
  const wide = Math.max(CHART_LEAST, chart.length) - 1;
  const x = (i) => 600 - ((chart.length - 1 - i) * 600) / wide;
  const y = (value) => 116 - (value / most) * 110;
  const lines = ["allowed", "denied", "would"].map((name) => {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    line.setAttribute("class", name);
    line.setAttribute("points", chart.map((point, i) => `${x(i).toFixed(1)},${y(point[name]).toFixed(1)}`).join(" "));
    return line;
  });
  $("chart").replaceChildren(...lines);
  $("chart-scale").textContent = `top of the chart: ${rate(most)}/s; last ${ago((chart.length * POLL_MS) / 1000)}`;
}

// ---- rankings

function showTop(top) {
  const covers = ago(Math.max(1, top.covers_seconds));
  $("top-note").textContent =
    `Last ${covers}. The true count is between count − error and count; ` +
    `keys not listed: at most ${top.keys.unlisted_at_most}, routes: at most ${top.routes.unlisted_at_most}.`;
  const counts = (entry) => [cell(short(entry.count), "num"), cell(entry.error ? `−${short(entry.error)}` : "0", "num")];
  const keys = top.keys.entries.map((entry) => {
    const name = cell(entry.encoded === null ? entry.name : "", "mono");
    if (entry.encoded !== null) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = entry.name;
      button.title = "Look at this key";
      button.addEventListener("click", () => look(entry.policy, entry.name, entry.encoded));
      name.append(button);
    }
    return row(name, cell(entry.policy, "nowrap"), ...counts(entry));
  });
  fill("top-keys", keys, 4, "Nobody lately.");
  const routes = top.routes.entries.map((entry) => row(cell(entry.name, "mono"), cell(entry.policy, "nowrap"), ...counts(entry)));
  fill("top-routes", routes, 4, "None lately.");
}

async function refreshTop() {
  const query = new URLSearchParams({ by: $("by").value, n: "10" });
  if ($("policy").value) query.set("policy", $("policy").value);
  showTop(await askJson(`admin/v1/top?${query}`));
}

// ---- one key

let looked = null; // the path of the key that is shown

async function look(policy, key, encoded = encodeURIComponent(key)) {
  $("lookup-policy").value = policy;
  $("lookup-key").value = key;
  await showKey(`admin/v1/policies/${encodeURIComponent(policy)}/keys/${encoded}`, "");
  $("lookup").scrollIntoView({ block: "nearest" });
}

async function showKey(path, done) {
  const note = $("lookup-note");
  try {
    const answer = await askJson(path);
    looked = path;
    note.textContent = `${done}${answer.key} under ${answer.policy}: ${answer.allowed ? "would pass" : "would be denied"}.`;
    fill("lookup-limits", answer.limits.map((limit) => row(
      cell(limit.text, "nowrap"), cell(`${short(limit.remaining)} of ${short(limit.limit)}`, "num"),
      cell(limit.allowed ? "now" : wait(limit.retry_after_ms), "num"), cell(wait(limit.reset_after_ms), "num"),
    )), 4, "This policy is off.");
  } catch (error) {
    looked = null;
    note.textContent = error.message || "The token was refused.";
  }
  $("lookup-scroll").hidden = looked === null;
  $("reset").disabled = looked === null;
}

$("lookup").addEventListener("submit", (event) => {
  event.preventDefault();
  look($("lookup-policy").value, $("lookup-key").value);
});
$("lookup").addEventListener("input", () => { $("reset").disabled = true; });
$("reset").addEventListener("click", async () => {
  if (!looked) return;
  try {
    const answer = await askJson(looked, { method: "DELETE" });
    await showKey(looked, answer.reset ? "Reset. " : "There was nothing to reset. ");
  } catch (error) {
    $("lookup-note").textContent = error.message || "The token was refused.";
  }
});

// ---- the stream of denials

// `fetch` rather than EventSource, which cannot send a token.
async function follow(mine) {
  while (mine === loop) {
    try {
      const headers = lastEvent ? { "Last-Event-ID": lastEvent } : {};
      const response = await ask("admin/v1/events", { headers });
      if (response.status === 401) return;
      if (response.ok) await readEvents(response.body.getReader(), mine);
    } catch { /* the server went away: try again */ }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function readEvents(reader, mine) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    if (mine !== loop) return void reader.cancel();
    const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = parts.pop();
    parts.forEach(showEvent);
  }
}

function showEvent(text) {
  const fields = Object.fromEntries(text.split("\n").map((line) => {
    const at = line.indexOf(": ");
    return [line.slice(0, at), line.slice(at + 2)];
  }));
  if (!fields.event) return;
  if (fields.id) lastEvent = fields.id;
  if (paused) return;
  const data = JSON.parse(fields.data);
  if (fields.event === "missed") return addEvent(row(gap(`${data.missed} denials went by too fast to show`)));
  if (data.suppressed) addEvent(row(gap(`${short(data.suppressed)} more of ${data.policy} not shown`)));
  const time = new Date(data.at_ms).toLocaleTimeString();
  const would = data.outcome === "would_deny" ? " (would deny)" : "";
  const failed = data.decided === "exact" ? "" : ` (${data.decided})`;
  addEvent(row(cell(time, "nowrap"), cell(data.policy + would, "nowrap"), cell(data.key, "mono"), cell(data.route, "mono"),
    cell(data.limit, "nowrap"), cell(wait(data.retry_after_ms) + failed, "num"), cell(data.request_id, "id")));
}

function gap(text) {
  const td = cell(text, "empty");
  td.colSpan = 7;
  return td;
}

function addEvent(tr) {
  const body = $("events");
  if (body.querySelector(".waiting")) body.replaceChildren();
  body.prepend(tr);
  while (body.rows.length > EVENTS_SHOWN) body.lastElementChild.remove();
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").textContent = paused ? "Go on" : "Pause";
  $("pause").setAttribute("aria-pressed", String(paused));
});

// ---- the loop, and the token

async function poll() {
  const now = await askJson("admin/v1/stats");
  now.at = Date.now();
  showCounts(now);
  last = now;
  if (polls % TOP_EVERY === 0) await refreshTop();
  polls += 1;
}

async function run() {
  const mine = ++loop;
  follow(mine);
  while (mine === loop) {
    try {
      await poll();
    } catch (error) {
      if (error instanceof Unauthorized) return askForToken();
      $("state").textContent = "no answer";
      $("state").className = "badge alarm";
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

function askForToken() {
  loop += 1;
  const had = sessionStorage.getItem(TOKEN);
  sessionStorage.removeItem(TOKEN);
  $("login-error").textContent = had ? "This token was refused." : "";
  $("login").hidden = false;
  $("main").hidden = true;
  $("forget").hidden = true;
  $("state").textContent = "locked";
  $("state").className = "badge warn";
  $("token").value = "";
  $("token").focus();
}

function start() {
  $("login").hidden = true;
  $("main").hidden = false;
  $("forget").hidden = !sessionStorage.getItem(TOKEN);
  const waiting = gap("None yet.");
  waiting.classList.add("waiting");
  $("events").replaceChildren(row(waiting));
  lastEvent = "";
  run();
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  // A header takes visible ASCII alone; anything else is no token anyway.
  sessionStorage.setItem(TOKEN, $("token").value.trim().replace(/[^\x21-\x7e]/g, "?"));
  start();
});
$("forget").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  last = null;
  askForToken();
});
for (const id of ["by", "policy"]) $(id).addEventListener("change", () => refreshTop().catch(() => {}));

start();
