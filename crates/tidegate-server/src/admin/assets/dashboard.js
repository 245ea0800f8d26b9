// The dashboard: loads the last minutes from the admin API, polls it for counts, shows the difference
// between two answers, and follows the stream of denials.
"use strict";

import { Refused, Unauthorized, Unreachable, request, requestJson, forgetToken, hasToken, keepToken, readEvents } from "./api.js";
import { Chart } from "./charts.js";
import { Intervals, LONG_SECONDS, quantile, rateOf, total } from "./intervals.js";
import {
  ago, bar, cell, clock, counted, distinctLimits, element, labelled, limitRow, listed, pairs, rate, row, seconds, short,
  usedShare, wait, whole,
} from "./format.js";

const POLL_MS = 1000;      // interval of polling counts
const TOP_EVERY = 3;       // rankings and nodes are polled with every third of them
const POLICIES_DRAWN = 6;  // maximum number of lines in the chart by policy
const EVENTS_SHOWN = 100;  // maximum number of denials on the page
const OVERRIDES_LISTED = 6;  // maximum number of overrides listed for a series
const RETRY_MS = 3000;     // delay before reconnecting the stream
const KEY_POINTS = 300;    // maximum number of points in the chart of a key
const KEY_LINES = 6;       // maximum number of lines in it, unless the policy itself has more limits
const FLEET_STALE_SECONDS = 15;  // age of the newest heartbeat after which the store has failed: nodes send one every 5 s

const $ = (id) => document.getElementById(id);
let last = null;           // the previous counts
let answeredAt = null;     // when the server last answered, in milliseconds
const intervals = new Intervals();
let polls = 0;
let loop = 0;              // number of the login, so that a loop of an earlier login ends
let lastEvent = "";
let paused = false;

// Requests that an observed policy would have denied were allowed.
const OUTCOMES = [
  { id: "tile-allowed", name: "allowed", color: "--allowed", of: (one) => one.allowed + one.would_deny },
  { id: "tile-denied", name: "denied", color: "--denied", of: (one) => one.denied },
  { id: "tile-would", name: "would deny", color: "--would", dashed: true, of: (one) => one.would_deny },
];
const empty = "The server has just started: the chart begins in a second.";
const outcomes = new Chart($("chart-outcomes"), { format: rate, empty });
const byPolicy = new Chart($("chart-policies"), { format: rate, empty: "No requests in the last five minutes." });
const latency = new Chart($("chart-latency"), { format: seconds, empty: "No decision was timed in the last five minutes.", log: true });
const keysChart = new Chart($("chart-keys"), { format: short, empty });
const keyChart = new Chart($("chart-key"), { format: (share) => `${Math.round(share * 100)} %`, empty: "This policy is off." });

// ---- building the page

function put(id, text, alarm = false) {
  $(id).textContent = text;
  $(id).classList.toggle("alarm", alarm);
}

function fill(id, rows, columns, nothing) {
  const empty = cell(nothing, "empty");
  empty.colSpan = columns;
  const table = $(id).closest("table");
  $(id).replaceChildren(...(rows.length ? rows : [row(empty)]).map((tr) => labelled(table, tr)));
}

// Rebuilt only when the names change, so that an open selection is kept.
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

const seriesId = (series) => JSON.stringify([series.policy, series.limit, series.mode]);
// Names in parentheses are not policies; the server generates them. The empty name stands for none.
const isPolicy = (name) => name !== "" && !name.startsWith("(");

/** Returns the changes of the series since the last answer, per second. */
function differences(now) {
  const before = new Map((last ? last.series : []).map((one) => [seriesId(one), one]));
  const elapsed = last ? now.uptime_seconds - last.uptime_seconds : 0;
  const per = (one, count) => {
    const old = before.get(seriesId(one));
    return elapsed > 0 ? Math.max(0, count(one) - (old ? count(old) : 0)) / elapsed : 0;
  };
  const sum = (count) => now.series.reduce((all, one) => all + per(one, count), 0);
  return { per, sum };
}

function showCounts(now) {
  const changes = differences(now);
  showTiles(now, changes);
  drawRequests();
  drawLatency(now.latency.bounds_seconds);
  drawKeys();
  showServer(now);
  showDecided(now, changes);
  showConfig(now);
  showPolicies(now, changes);
}

function showTiles(now, changes) {
  const newest = intervals.all.at(-1);
  for (const { id, of } of OUTCOMES) {
    const value = newest && rateOf(newest, of);
    put(id, Number.isFinite(value) ? rate(value) : "–");
  }
  put("tile-near", rate(changes.sum((one) => one.near)));
  const { bounds_seconds: bounds, counts } = now.latency;
  const recent = quantile(newest?.latency ?? [], bounds, 0.99);
  const p99 = recent ?? quantile(counts, bounds, 0.99);
  put("tile-latency", p99 === undefined ? "–" : p99 > 1 ? "> 1 s" : seconds(p99));
  put("tile-latency-note", p99 === undefined ? "nothing measured yet" : recent ? "at most, last second" : "at most, since the start");
}

function drawRequests() {
  const { all } = intervals;
  const times = all.map(({ time }) => time);
  const chosen = $("chart-policy").value || null;
  outcomes.draw(OUTCOMES.map(({ name, color, dashed }) => ({ name, color, dashed })), times,
    OUTCOMES.map(({ of }) => all.map((interval) => rateOf(interval, of, chosen))));
  const sums = new Map();
  for (const one of all.flatMap(({ requests = [] }) => requests)) {
    sums.set(one.policy, (sums.get(one.policy) ?? 0) + total(one));
  }
  const busiest = [...sums].sort((one, other) => other[1] - one[1]).slice(0, POLICIES_DRAWN).map(([name]) => name).sort();
  byPolicy.draw(busiest.map((name) => ({ name: name || "no policy" })), times,
    busiest.map((name) => all.map((interval) => rateOf(interval, total, name))));
}

function drawLatency(bounds) {
  const { all } = intervals;
  const column = (part) => all.map(({ latency: counts }) => (counts ? quantile(counts, bounds, part) : null));
  latency.draw([{ name: "p50", color: "--two" }, { name: "p99", color: "--one" }],
    all.map(({ time }) => time), [column(0.5), column(0.99)]);
}

function drawKeys() {
  const { all } = intervals;
  keysChart.draw([{ name: "keys here", color: "--one" }], all.map(({ time }) => time), [all.map(({ keys }) => keys ?? null)]);
}

function showServer(now) {
  const { store } = now;
  const full = store.max_keys ? store.tracked_keys / store.max_keys : 0;
  put("tile-keys", short(store.tracked_keys), full > 0.9);
  put("tile-keys-note", `one per key and limit, at most ${short(store.max_keys)}`);
  showState(now.ready ? "ready" : "draining", now.ready ? "good" : "warn");
  const connections = now.fronts.reduce((all, front) => all + front.connections, 0);
  const memory = now.resident_bytes ? `, ${Math.round(now.resident_bytes / 1048576)} MiB` : "";
  $("facts").textContent =
    `${now.version}, up ${ago(now.uptime_seconds)}, ${counted(connections, "connection")}${memory}`;
}

/** Sets the badge. */
function showState(text, kind) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = `badge ${kind}`;
}

/** Marks everything on the page as old while the server does not answer. */
function showNoAnswer() {
  showState(answeredAt === null ? "no answer" : `no answer since ${clock(answeredAt)}`, "alarm");
  $("content").classList.add("stale");
  for (const value of document.querySelectorAll(".tile p")) put(value.id, "–");
}

/** Shows an error of the page, or one that the server answers with. The counts are then old. */
function showFault(error) {
  console.error(error);
  showState(`error: ${error.message}`, "alarm");
  $("content").classList.add("stale");
}

const DECISION_SOURCES = [
  ["exact", "by the store"], ["local", "here alone, the limit divided"],
  ["failed-open", "let through, the store failed"], ["failed-closed", "denied, the store failed"],
];

function showDecided(now, changes) {
  const rates = DECISION_SOURCES.map(([source]) => changes.sum((one) => one.decided[source]));
  const all = rates.reduce((a, b) => a + b, 0);
  $("decided-note").textContent = all
    ? "Decisions of limits in the last second: a request under two limits makes two."
    : "Nothing was decided in the last second.";
  $("decided").replaceChildren(...DECISION_SOURCES.map(([source, meaning], index) => {
    const item = document.createElement("li");
    const share = all ? rates[index] / all : 0;
    item.append(element("b", index && share ? "alarm" : "", source), element("span", "quiet", meaning),
      element("span", "num", `${rate(rates[index])}/s`), bar(share, index ? "bad" : ""));
    return item;
  }));
  $("store").replaceChildren(...pairs([...sharedStoreRows(now), ...memoryStoreRows(now)]));
}

function sharedStoreRows({ store: { shared } }) {
  if (!shared) return [["store", "memory of this server"]];
  const old = last?.store.shared;
  const trips = shared.round_trips - (old?.round_trips ?? 0);
  const took = shared.round_trip_seconds - (old?.round_trip_seconds ?? 0);
  const failures = Object.entries(shared.failures).filter(([, count]) => count > 0);
  return [
    ["shared store", shared.up ? "up" : "down", !shared.up],
    ["round trip", trips > 0 ? `${seconds(took / trips)}, mean` : "–"],
    ["connections", String(shared.connections)],
    ["failed", failures.length ? failures.map(([kind, count]) => `${short(count)} ${kind}`).join(", ") : "none", failures.length > 0],
    ["given up", counted(shared.breaker_openings, "time"), shared.breaker_openings > 0],
    ["denied from memory", short(shared.deny_cache_hits)],
  ];
}

function memoryStoreRows({ store }) {
  return [
    ["keys here", `${short(store.tracked_keys)} of ${short(store.max_keys)}`, store.tracked_keys > 0.9 * store.max_keys],
    ["log entries", short(store.log_entries)],
    ["answered without room", short(store.overflowed), store.overflowed > 0],
  ];
}

function showConfig(now) {
  const { config, reloads } = now;
  const wall = now.started_seconds + now.uptime_seconds;
  $("config").replaceChildren(...pairs([
    ["read from", config.source ?? "built in: no file was named"],
    ["policies", String(config.policies)],
    ["in force since", `${ago(wall - reloads.last_ok_seconds)} ago`],
    ["reloads", `${reloads.ok} taken, ${reloads.refused} refused`, reloads.refused > 0],
  ]));
  const refusal = reloads.last_refusal;
  $("refusal").hidden = refusal === null;
  if (!refusal) return;
  $("refusal-when").textContent = refusal.mended
    ? `A file was refused ${ago(wall - refusal.at_seconds)} ago; a later one was taken.`
    : `The file was refused ${ago(wall - refusal.at_seconds)} ago: the old config stays in force.`;
  if ($("refusal-why").textContent !== refusal.why) $("refusal-why").textContent = refusal.why;
}

/** Marks a series in which overrides of the policy count, and the policy itself does not. */
function ofOverrides(numbers) {
  if (!numbers.length) return "";
  return ` (${numbers.length > 1 ? "overrides" : "override"} ${listed(numbers, OVERRIDES_LISTED)})`;
}

/** Returns the name of the policy of a series, marked if the current config has no such limit. */
function seriesName({ policy, in_force: inForce, overrides }) {
  const isGone = isPolicy(policy) && !inForce;
  return policy + (isGone ? " (no longer in force)" : ofOverrides(overrides));
}

function showPolicies(now, changes) {
  const names = [...new Set(now.series.filter((one) => one.in_force).map((one) => one.policy))];
  options("policy", names, [""]);
  options("chart-policy", now.requests.map((one) => one.policy).filter(isPolicy), [""]);
  options("lookup-policy", names, []);
  const shown = now.series.filter((one) => one.in_force || total(one) > 0);
  const rows = shown.map((one) => row(
    cell(seriesName(one), "name"), cell(one.limit, "nowrap"), cell(one.mode),
    cell(rate(changes.per(one, total)), "num"), cell(short(one.allowed), "num"),
    cell(short(one.denied), "num"), cell(short(one.would_deny), "num"),
    cell(short(one.near), "num"), cell(short(one.inexact), "num"),
  ));
  fill("policies", rows, 9, "No policies.");
}

// ---- the nodes that share the store

function showFleet({ differing, nodes }) {
  $("fleet").hidden = nodes.length === 0;
  const age = Math.min(...nodes.map((node) => node.last_seen_seconds));
  put("fleet-note", age > FLEET_STALE_SECONDS
    ? `The store has not answered for ${ago(age)}: these are the nodes that were known then.`
    : differing
      ? `${differing} of ${nodes.length} nodes that share the store have other policies than this one.`
      : `All nodes that share the store have the same policies: ${nodes.length} in all.`, differing > 0);
  const sorted = nodes.toSorted((one, other) => other.differs - one.differs);
  fill("fleet-nodes", sorted.map((node) => row(
    cell(node.own ? `${node.name} (this server)` : node.name, "name"),
    cell(node.differs ? "different" : "the same", node.differs ? "alarm" : ""),
    cell(node.fingerprint, "mono"), cell(`${ago(node.last_seen_seconds)} ago`, "num"),
  )), 4, "None.");
}

// ---- rankings

function showTop(top) {
  const covers = ago(Math.max(1, top.covers_seconds));
  const isSampled = top.sampled_one_in > 1;
  // The errors and bounds of a sampled list are about its samples, not about all requests.
  put("top-note", isSampled
    ? `Last ${covers}. Counts are estimated from one request in ${whole(top.sampled_one_in)}: they may be too high or too low, and keys with few requests may be missing.`
    : `Last ${covers}. The true count is between count − error and count; ` +
      `keys not listed: at most ${whole(top.keys.unlisted_at_most)}, routes: at most ${whole(top.routes.unlisted_at_most)}.`);
  const error = (entry) => (isSampled ? "–" : entry.error ? `−${short(entry.error)}` : "0");
  const counts = (entry) => [cell(short(entry.count), "num"), cell(error(entry), "num")];
  const keys = top.keys.entries.map((entry) => {
    const name = cell(entry.encoded === null ? entry.name : "", "mono");
    if (entry.encoded !== null) {
      const button = element("button", "", entry.name);
      button.type = "button";
      button.title = "Look at this key";
      button.addEventListener("click", () => lookUp(entry.policy, entry.name, entry.encoded));
      name.append(button);
    }
    return row(name, cell(entry.policy, "name"), ...counts(entry));
  });
  fill("top-keys", keys, 4, "Nobody lately.");
  const routes = top.routes.entries.map((entry) => row(cell(entry.name, "mono"), cell(entry.policy, "name"), ...counts(entry)));
  fill("top-routes", routes, 4, "None lately.");
}

async function refreshTop() {
  const query = new URLSearchParams({ by: $("by").value, n: "10" });
  if ($("policy").value) query.set("policy", $("policy").value);
  const mine = loop;
  try {
    const top = await requestJson(`admin/v1/top?${query}`);
    if (mine === loop) showTop(top);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    // The policy may have been removed since the last counts.
    if (mine === loop) showNoTop(error.message);
  }
}

function showNoTop(why) {
  put("top-note", why, true);
  fill("top-keys", [], 4, "Unknown.");
  fill("top-routes", [], 4, "Unknown.");
}

// ---- one key

let lookup = null;   // the current lookup: `{path, message}` and, once it is answered, `{key, policy}`
let keyPoints = [];  // how much of each limit the key had used: `{time, process, shares}`, by the text of the limit

async function lookUp(policy, key, encoded = encodeURIComponent(key)) {
  $("lookup-policy").value = policy;
  $("lookup-key").value = key;
  // In the query, because a browser would normalize a path that ends in `..`.
  await showKey(`admin/v1/policies/${encodeURIComponent(policy)}/keys?key=${encoded}`, "");
  $("lookup").scrollIntoView({ block: "nearest" });
}

/** Looks up a key and shows it, after a message about the last action on it. */
async function showKey(path, message) {
  if (path !== lookup?.path) keyPoints = [];
  lookup = { path, message };
  await refreshKey();
}

/** Requests the current key again. A late answer to an earlier lookup is dropped. */
async function refreshKey() {
  const mine = lookup;
  try {
    const answer = await requestJson(mine.path);
    if (mine !== lookup) return;
    Object.assign(lookup, { key: answer.key, policy: answer.policy });
    const others = answer.also_seen ? ` Other keys with this value: ${answer.also_seen.join(", ")}.` : "";
    noteLookup(mine.message + verdictOf(answer) + others);
    const overrides = (answer.overrides ?? []).flatMap((override) => override.limits.map((limit) => limitRow(limit, override)));
    fill("lookup-limits", [...answer.limits.map((limit) => limitRow(limit)), ...overrides], 5, "This policy is off.");
    drawKey(answer);
  } catch (error) {
    if (mine !== lookup) return;
    // A key that is already shown stays until the server answers again.
    if (mine.key && error instanceof Unreachable) throw error;
    lookup = null;
    noteLookup(error.message || "The token was refused.");
  }
  $("lookup-view").hidden = lookup === null;
  $("reset").disabled = lookup === null;
}

/** Returns whether a request of the key would pass, as a sentence. */
function verdictOf({ key, policy, limits, mode, seen, overrides, overrides_left_out: leftOut }) {
  const denied = limits.some((limit) => !limit.allowed);
  const verdict = !denied ? "would pass" : mode === "observe" ? "would be denied, were it enforced" : "would be denied";
  const unless = overrides ? ", unless an override applies" : "";
  const more = leftOut ? ` ${whole(leftOut)} more overrides are not shown.` : "";
  return `${key} under ${policy}: ${seen ? "" : "nothing is counted under it, "}${verdict}${unless}.${more}`;
}

/** Sets the note of the lookup if it changed, so that screen readers announce only changes. */
function noteLookup(text) {
  if ($("lookup-note").textContent !== text) $("lookup-note").textContent = text;
}

/** Adds the used share of each limit to the chart of the key. */
function drawKey(answer) {
  if (last === null) return;  // the server has restarted, and its time is not known yet
  const [time, process] = [intervals.timeOf(last), last.started_seconds];
  // A key that is looked at twice between two polls has two answers for one time.
  while (keyPoints.at(-1)?.time >= time) keyPoints.pop();
  const before = keyPoints.at(-1);
  // The use of the key is unknown while the server does not answer, and starts again with another process.
  if (before && (process !== before.process || time - before.time > LONG_SECONDS)) {
    keyPoints.push({ time: (before.time + time) / 2, process, shares: new Map() });
  }
  const limits = distinctLimits(answer);
  keyPoints.push({ time, process, shares: new Map([...limits].map(([text, { limit }]) => [text, usedShare(limit)])) });
  keyPoints.splice(0, keyPoints.length - KEY_POINTS);
  const isUsed = (text) => keyPoints.some(({ shares }) => shares.get(text) > 0);
  const drawn = [...limits].filter(([text, { isOwn }]) => isOwn || isUsed(text))
    .slice(0, Math.max(KEY_LINES, answer.limits.length));
  keyChart.draw(drawn.map(([, { name }]) => ({ name })), keyPoints.map((point) => point.time),
    drawn.map(([text]) => keyPoints.map(({ shares }) => shares.get(text) ?? null)));
}

$("lookup").addEventListener("submit", (event) => {
  event.preventDefault();
  lookUp($("lookup-policy").value, $("lookup-key").value);
});

function forgetLookup() {
  lookup = null;
  noteLookup("");
  $("lookup-view").hidden = true;
  $("reset").disabled = true;
}

// A changed form no longer belongs to the result below it.
$("lookup").addEventListener("input", forgetLookup);

/** Asks for confirmation before a key is reset. */
function confirmReset({ key, policy }) {
  const dialog = $("confirm");
  $("confirm-text").replaceChildren("Reset ", element("code", "", key), " under ", element("code", "", policy),
    "? What it has used of all limits of this policy is forgotten.");
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "reset"), { once: true });
  });
}
$("confirm-reset").addEventListener("click", () => $("confirm").close("reset"));
$("confirm-cancel").addEventListener("click", () => $("confirm").close("cancel"));

/** Resets a key. Returns the outcome as a sentence. */
async function resetKey(path) {
  try {
    const answer = await requestJson(path, { method: "DELETE" });
    return `${answer.reset ? "Reset" : "There was nothing to reset"} at ${clock(Date.now())}. `;
  } catch (error) {
    return `Not reset: ${error.message.replace(/\.$/, "") || "the token was refused"}. `;
  }
}

$("reset").addEventListener("click", async () => {
  if (!lookup?.key) return;
  const { path } = lookup;
  const message = await confirmReset(lookup) ? await resetKey(path) : "Nothing was reset. ";
  if (lookup?.path === path) await showKey(path, message);
});

// ---- the stream of denials

// `fetch` rather than EventSource, which cannot send a token.
async function follow(mine) {
  while (mine === loop) {
    try {
      const headers = lastEvent ? { "Last-Event-ID": lastEvent } : {};
      const response = await request("admin/v1/events", { headers });
      if (response.status === 401) return;
      if (response.ok) await readEvents(response, () => mine === loop, showEvent);
    } catch { /* connection lost: try again */ }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function showEvent(fields) {
  if (fields.id) lastEvent = fields.id;
  if (paused) return;
  const data = JSON.parse(fields.data);
  if (fields.event === "missed") return addEvent(row(gap(`${counted(data.missed, "denial")} went by too fast to show`)));
  if (data.suppressed) addEvent(row(gap(`${short(data.suppressed)} more of ${data.policy} not shown`)));
  const time = clock(data.at_ms);
  const would = data.outcome === "would_deny" ? " (would deny)" : "";
  const failed = data.decided === "exact" ? "" : ` (${data.decided})`;
  addEvent(row(cell(time, "nowrap"), cell(data.policy + would, "name"), cell(data.key, "mono"), cell(data.route, "mono"),
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
  body.prepend(labelled(body.closest("table"), tr));
  while (body.rows.length > EVENTS_SHOWN) body.lastElementChild.remove();
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").textContent = paused ? "Go on" : "Pause";
  $("pause").setAttribute("aria-pressed", String(paused));
});

// ---- the loop, and the token

async function refreshFleet(mine) {
  try {
    const fleet = await requestJson("admin/v1/fleet");
    if (mine === loop) showFleet(fleet);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (mine === loop) put("fleet-note", error.message, true);
  }
}

/** Polls the server once. An answer that arrives after the end of its login is dropped. */
async function poll(mine) {
  const now = await requestJson("admin/v1/stats");
  if (mine !== loop) return;
  answeredAt = Date.now();
  const isRestart = last !== null && now.started_seconds !== last.started_seconds;
  // The events and series of another process are numbered and counted from the beginning.
  if (isRestart) [last, lastEvent] = [null, ""];
  await intervals.add(now, () => requestJson("admin/v1/history"));
  if (mine !== loop) return;
  showCounts(now);
  $("content").classList.remove("stale");
  last = now;
  polls += 1;
  if (polls % TOP_EVERY === 1) {
    await refreshTop();
    await refreshFleet(mine);
  }
  if (lookup && !$("confirm").open) await refreshKey();
}

async function run() {
  const mine = ++loop;
  follow(mine);
  while (mine === loop) {
    try {
      await poll(mine);
    } catch (error) {
      if (mine !== loop) return;
      if (error instanceof Unauthorized) return showLogin();
      if (error instanceof Unreachable) showNoAnswer();
      else showFault(error);
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Removes what the token gave access to from the page. */
function clearContent() {
  last = null;
  intervals.clear();
  forgetLookup();
  keyPoints = [];
  $("lookup-key").value = "";
  for (const id of ["lookup-limits", "confirm-text", "events", "top-keys", "top-routes"]) $(id).replaceChildren();
}

function showLogin() {
  loop += 1;
  clearContent();
  $("login-error").textContent = hasToken() ? "This token was refused." : "";
  forgetToken();
  $("login").hidden = false;
  $("content").hidden = true;
  $("forget").hidden = true;
  showState("locked", "warn");
  $("token").value = "";
  $("token").focus();
}

function start() {
  $("login").hidden = true;
  $("content").hidden = false;
  $("forget").hidden = !hasToken();
  const waiting = gap("None yet.");
  waiting.classList.add("waiting");
  $("events").replaceChildren();
  addEvent(row(waiting));
  lastEvent = "";
  run();
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken($("token").value);
  start();
});
$("forget").addEventListener("click", () => {
  forgetToken();
  showLogin();
});
$("chart-policy").addEventListener("change", drawRequests);
for (const id of ["by", "policy"]) $(id).addEventListener("change", () => refreshTop().catch(() => {}));

start();
