// Accessibility of every page, checked by axe: in light and dark mode, on a phone and on a wide screen.
//
// A new page is a new entry in PAGES. `show` brings the page into the state to be checked. A page
// with several states calls `check` for each of them.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { browse, flaws, fleetNode, isTooWide, open, post, serve, shareStore } from "./harness.mjs";

const SCHEMES = ["light", "dark"];
const WIDTHS = [390, 1400];

const CONFIG = `
policies:
  - name: login
    match: { methods: [POST], path: /login }
    key: "{client_ip}"
    limits: ["5 per 1h sliding-log"]
  - name: api
    match: { path: "/api/**" }
    key: "{header:x-api-key | client_ip}"
    limits: ["100 per 1m", "1000 per 1h"]
  - name: watched
    match: { path: "/api/**" }
    key: "{header:x-api-key | client_ip}"
    limits: ["2 per 1h"]
    mode: observe
`;

let server;
let guarded;
let browser;
let home;
before(async () => {
  home = mkdtempSync(join(tmpdir(), "tidegate-accessibility-"));
  [server, guarded, browser] = await Promise.all([
    serve({ config: CONFIG }),
    serve({ config: CONFIG, env: { TIDEGATE_TOKENS: "s3cret", TIDEGATE_ADMIN_TOKEN: "open-sesame" } }),
    browse(),
  ]);
});
after(async () => {
  await Promise.all([browser?.close(), server?.stop(), guarded?.stop()]);
  rmSync(home, { recursive: true, force: true });
});

/** Sends requests that are admitted, denied and observed. */
async function sendRequests() {
  for (let number = 0; number < 12; number += 1) {
    await post(server.http, "/v1/check", { attributes: { method: "POST", path: "/login", client_ip: "192.0.2.7" } });
    await post(server.http, "/v1/check", { attributes: { path: "/api/items", headers: { "x-api-key": `team-${number % 3}` } } });
  }
}

/** Writes the HTML report of a command of tidegate and returns its URL. */
function report(name, args) {
  const file = join(home, `${name}.html`);
  execFileSync(process.env.TIDEGATE_BIN, [...args, "--html", file], { stdio: "pipe" });
  return pathToFileURL(file).href;
}

/** Replays a trace with a denied key and a bad line, so that the report has a suggestion and a problem. */
function replayReport() {
  const trace = join(home, "trace.csv");
  writeFileSync(trace, "1000000,a\n2000000,b\n3000000,a\nnot a time,a\n4000000,a\n");
  return report("replay", ["replay", trace, "--limit", "2 per 10s", "--suggest", "99"]);
}

const simulateReport = () => report("simulate",
  ["simulate", "--limit", "20 per 1m", "--traffic", "boundary", "--clients", "5", "--windows", "5", "--algorithm", "all"]);

/** Runs each experiment of the playground, and checks the page after it. */
async function runExperiments(page, check) {
  const ids = await page.locator("#cards form").evaluateAll((forms) => forms.map((form) => form.id));
  assert.ok(ids.length > 0, "the page has experiments");
  for (const id of ids) {
    await page.click(`#${id} button`);
    await page.locator(`#${id} .why`).waitFor({ state: "visible" });
    await check(id);
  }
}

async function answerQuiz(page) {
  for (const question of await page.locator("#quiz fieldset").all()) await question.locator("input").first().check();
  await page.click("#quiz button");
  await page.locator("#quiz .why").first().waitFor({ state: "visible" });
}

async function showTable(page) {
  await page.click("#burst");
  await page.locator("#status", { hasText: "8 sent" }).waitFor();
  for (const summary of await page.locator("summary").all()) await summary.click();
  await page.locator("#table-rows tr").first().waitFor();
}

async function showDenials(page) {
  await sendRequests();
  await page.locator("#events td.mono").first().waitFor();
  await page.locator("#top-keys button").first().waitFor();
}

async function askForReset(page) {
  await showDenials(page);
  await page.locator("#lookup-policy option[value=login]").waitFor({ state: "attached" });
  await page.selectOption("#lookup-policy", "login");
  await page.fill("#lookup-key", "192.0.2.7");
  await page.click("#lookup button[type=submit]");
  await page.locator("#lookup-limits", { hasText: "of 5" }).waitFor();
  await page.click("#reset");
  await page.locator("#confirm-text").waitFor({ state: "visible" });
}

/** Lets the requests of the dashboard fail, so that it marks everything as old. */
async function loseServer(page) {
  await showDenials(page);
  await page.route("**/admin/v1/stats", (route) => route.abort());
  await page.locator("#content.stale").waitFor();
}

async function showFleet(page) {
  await shareStore(page, [fleetNode("tidegate-0:8080", { own: true }), fleetNode("tidegate-1:8080", { differs: true })]);
  await page.locator("#fleet-nodes .alarm").waitFor();
}

const PAGES = [
  { name: "the playground", url: () => `${server.http}/playground`, show: (page) => page.locator(".lane").first().waitFor() },
  { name: "the playground after each experiment", url: () => `${server.http}/playground`, show: runExperiments },
  { name: "the playground with every algorithm", url: () => `${server.http}/playground?limit=60&algorithms=fixed-window,sliding-counter,sliding-window,sliding-log,token-bucket&at=29750000&events=14900000*60.15000001`, show: (page) => page.locator(".lane .strip text").first().waitFor() },
  { name: "the playground with its quiz answered", url: () => `${server.http}/playground`, show: answerQuiz },
  { name: "the playground with its table", url: () => `${server.http}/playground`, show: showTable },
  { name: "the playground with notes on its address", url: () => `${server.http}/playground?limit=x&cost=0`, show: (page) => page.locator("#notes li").first().waitFor() },
  { name: "the token form of the playground", url: () => `${guarded.http}/playground`, expects: /401/, show: (page) => page.locator("#token").waitFor() },
  { name: "the dashboard with data", url: () => `${server.admin}/dashboard`, show: showDenials },
  { name: "the dashboard with a key and the question about its reset", url: () => `${server.admin}/dashboard`, show: askForReset },
  { name: "the dashboard with nodes that differ", url: () => `${server.admin}/dashboard`, show: showFleet },
  { name: "the dashboard without its server", url: () => `${server.admin}/dashboard`, expects: /ERR_/, show: loseServer },
  { name: "the token form of the dashboard", url: () => `${guarded.admin}/dashboard`, expects: /401/, show: (page) => page.locator("#token").waitFor() },
  { name: "the report of a replay", url: replayReport, show: (page) => page.locator("#suggested").waitFor() },
  { name: "the report of simulated traffic, all algorithms", url: simulateReport },
  { name: "/ of the API", url: () => `${server.http}/`, show: (page) => page.locator("main li").first().waitFor() },
  { name: "the list of the documentation", url: () => `${server.http}/docs`, show: (page) => page.locator("main li").first().waitFor() },
  { name: "/ of the admin front", url: () => `${server.admin}/`, show: (page) => page.locator(".tile").first().waitFor() },
];

/** Checks the current state of a page in every colour scheme and width, and reports all violations at once. */
async function checkState(page, state) {
  const found = [];
  for (const colorScheme of SCHEMES) {
    for (const width of WIDTHS) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 900 });
      const where = `${state}, ${colorScheme}, ${width} px`;
      for (const flaw of await flaws(page)) found.push(`${where}: ${flaw}`);
      if (await isTooWide(page)) found.push(`${where}: wider than the window`);
    }
  }
  assert.deepEqual(found, []);
}

for (const { name, url, show, expects } of PAGES) {
  test(`axe finds no violation: ${name}`, async () => {
    const page = await open(browser, url(), { reducedMotion: "reduce" });
    if (expects) page.expects(expects);
    let checked = 0;
    const check = async (state) => {
      await checkState(page, state);
      checked += 1;
    };
    await show?.(page, check);
    if (checked === 0) await check(name);
    await page.done();
  });
}
