// The dashboard in a browser: under load, with hostile keys, with an unreachable store.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";
import { browse, flaws, fleetNode, isTooWide, open, post, serve, shareStore } from "./harness.mjs";

const MASKED = `
policies:
  - name: login
    match: { methods: [POST], path: /login }
    key: "{client_ip}"
    limits: ["5 per 1h sliding-log"]
  - name: api
    match: { path: "/api/**" }
    key: "{header:x-api-key | client_ip}"
    limits: ["100000 per 1m"]
  - name: watched
    match: { path: "/api/**" }
    key: "{header:x-api-key | client_ip}"
    limits: ["2 per 1h"]
    mode: observe
`;
// Full keys, so that hostile ones reach the page.
const POLICIES = `log_keys: full${MASKED}`;
const HOSTILE = `<img src=x onerror="document.title='owned'">`;

let server;
let browser;
let busy = true;
let load;

/** Sends requests of every kind until it is stopped. */
async function keepBusy() {
  for (let number = 0; busy; number += 1) {
    const ask = (attributes) => post(server.http, "/v1/check", { attributes });
    await Promise.all([
      ask({ method: "POST", path: "/login", client_ip: "192.0.2.7" }),
      ask({ path: "/api/items", headers: { "x-api-key": `team-${number % 3}` } }),
      ask({ path: `/api/${HOSTILE}`, headers: { "x-api-key": HOSTILE } }),
    ]);
    await new Promise((resolve) => setTimeout(resolve, 15));
  }
}

before(async () => {
  [server, browser] = await Promise.all([serve({ config: POLICIES }), browse()]);
  load = keepBusy();
});
after(async () => {
  busy = false;
  await load;
  await Promise.all([browser?.close(), server?.stop()]);
});

const dashboard = (options) => open(browser, `${server.admin}/dashboard`, options);
const text = (page, selector) => page.locator(selector).innerText();
const shows = (page, selector, wanted) => page.locator(selector).filter({ hasText: wanted }).first().waitFor();
/** Waits until a tile shows activity. */
const positive = (page, id) => page.waitForFunction((place) => Number.parseFloat(document.querySelector(place).textContent) > 0, id);

/** Looks up a key by the form. */
async function lookUp(page, policy, key) {
  await page.locator(`#lookup-policy option[value=${policy}]`).waitFor({ state: "attached" });
  await page.selectOption("#lookup-policy", policy);
  await page.fill("#lookup-key", key);
  await page.click("#lookup button[type=submit]");
}

test("under load it shows what happens", async () => {
  const page = await dashboard();
  for (const id of ["#tile-allowed", "#tile-denied", "#tile-would"]) await positive(page, id);
  assert.match(await text(page, "#tile-latency"), /\d (ns|µs|ms|s)$/);
  await page.waitForFunction(() => document.querySelectorAll("#chart-outcomes .legend b").length === 3
    && [...document.querySelectorAll("#chart-outcomes .legend b")].every((value) => Number.parseFloat(value.textContent) > 0));
  assert.deepEqual(await page.locator("#chart-policies .legend span").allInnerTexts(), ["api", "login", "watched"]);
  for (const id of ["#chart-outcomes", "#chart-policies", "#chart-latency"]) {
    const drawn = await page.locator(`${id} canvas`).evaluate((canvas) =>
      canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte !== 0));
    assert.ok(drawn, `${id} is drawn`);
  }
  // In one step, because the rows are replaced now and then.
  const rows = await page.evaluate(() => [...document.querySelectorAll("#policies tr")].map((row) =>
    [...row.cells].slice(0, 3).map((cell) => cell.textContent)));
  assert.deepEqual(rows, [
    ["api", "100000 per 1m sliding-window", "enforce"],
    ["login", "5 per 1h sliding-log", "enforce"],
    ["watched", "2 per 1h sliding-window", "observe"],
  ]);
  assert.match(await text(page, "#decided li:first-child"), /exact/);
  await shows(page, "#decided-note", /^Decisions of limits in the last second: a request under two limits makes two\.$/);
  assert.match(await text(page, "#config"), /tidegate\.yaml[^]*policies\s+3/);
  await page.locator("#events td.mono", { hasText: "192.0.2.7" }).first().waitFor();
  await page.done();
});

test("numbers that are not of requests say what they count", async () => {
  const mine = await serve({ config: `policies: [{ name: api, key: all, limits: ["6 per 1h", "600 per 1d"] }]` });
  try {
    await post(mine.http, "/v1/check", { policy: "api", key: "k" });
    const page = await open(browser, `${mine.admin}/dashboard`);
    await shows(page, "#tile-keys", /^2$/);
    assert.equal(await text(page, "#tile-keys-note"), "one per key and limit, at most 1.0M");
    assert.equal(await text(page, "#decided-note"), "Nothing was decided in the last second.");
    assert.equal(await text(page, "#tile-near + small"), "limits per second with at most 5 % left");
    await page.done();
  } finally {
    await mine.stop();
  }
});

test("one connection is not called connections", async () => {
  const page = await dashboard();
  for (const [connections, shown] of [[1, ", 1 connection"], [2, ", 2 connections"]]) {
    await page.route("**/admin/v1/stats", async (route) => {
      const json = await (await route.fetch()).json();
      await route.fulfill({ json: { ...json, resident_bytes: null, fronts: [{ front: "http", connections, answers: 0 }] } });
    });
    await shows(page, "#facts", new RegExp(`${shown}$`));
  }
  await page.unrouteAll({ behavior: "wait" });
  await page.done();
});

test("one policy can be watched alone", async () => {
  const page = await dashboard();
  await positive(page, "#tile-allowed");
  await page.selectOption("#chart-policy", "login");
  await page.waitForFunction(() => {
    const [allowed, denied] = [...document.querySelectorAll("#chart-outcomes .legend b")].map((value) => value.textContent);
    return allowed === "0" && Number.parseFloat(denied) > 0;
  });
  await page.done();
});

test("a hostile key is text: listed, looked at, reset", async () => {
  const page = await dashboard();
  await page.selectOption("#by", "would_deny");
  const button = page.locator("#top-keys button", { hasText: HOSTILE });
  await button.waitFor();
  await page.locator("#top-routes td.mono", { hasText: "/api/%3Cimg%20src=x" }).waitFor();
  await page.locator("#events td.mono", { hasText: HOSTILE }).first().waitFor();
  await button.click();
  await shows(page, "#lookup-note", `${HOSTILE} under watched: would be denied, were it enforced.`);
  assert.match(await text(page, "#lookup-limits"), /2 per 1h sliding-window\s+0 of 2/);
  await page.click("#reset");
  await shows(page, "#confirm-text", HOSTILE);
  await page.click("#confirm-reset");
  await shows(page, "#lookup-note", /^Reset at [\d:]{8}\. /);
  assert.equal(await page.title(), "tidegate dashboard");
  assert.equal(await page.locator("img").count(), 1, "only the logo");
  await page.done();
});

test("a key is shown under each override", async () => {
  const config = `policies:
  - name: users
    key: "{header:x-user}"
    limits: [2 per 1h]
    overrides:
      - { when: { "header:x-user": vip }, limits: [100 per 1d] }
      - { when: { "header:x-user": free, method: GET }, mode: observe }
`;
  const mine = await serve({ config });
  for (let times = 0; times < 3; times += 1) {
    await post(mine.http, "/v1/check", { attributes: { path: "/", headers: { "x-user": "vip" } } });
  }
  await post(mine.http, "/v1/check", { attributes: { path: "/", headers: { "x-user": "alice" } } });
  const page = await open(browser, `${mine.admin}/dashboard`);
  await page.locator("#lookup-policy option[value=users]").waitFor({ state: "attached" });
  await page.fill("#lookup-key", "vip");
  await page.click("#lookup button[type=submit]");
  await shows(page, "#lookup-note", "vip under users: would pass, unless an override applies.");
  const rows = await page.locator("#lookup-limits tr").allInnerTexts();
  assert.match(rows[1], /100 per 1d sliding-window\s+if header:x-user: vip\s+97 of 100/);
  assert.match(rows[2], /2 per 1h sliding-window\s+if header:x-user: free and method: GET: only observed/);
  // Regression: the chart had only the limits of the policy itself.
  const legend = () => page.locator("#chart-key .legend li").allInnerTexts();
  await page.locator("#chart-key canvas").waitFor({ state: "visible" });
  assert.deepEqual(await legend(), ["2 per 1h sliding-window\n0 %", "100 per 1d sliding-window if header:x-user: vip\n3 %"]);
  await lookUp(page, "users", "alice");
  await shows(page, "#lookup-note", "alice under users");
  assert.deepEqual(await legend(), ["2 per 1h sliding-window\n50 %"]);
  await page.done();
  await mine.stop();
});

test("a limit of several overrides is one line in the chart of a key", async () => {
  const override = (user, limit) => `{ when: { "header:x-user": ${user} }, limits: ["${limit}"] }`;
  const overrides = [override("acme", "6 per 1h"), override("globex", "6 per 1h"), override("hooli", "8 per 1m")];
  const mine = await serve({ config: `policies: [{ name: users, key: "{header:x-user}", limits: ["4 per 1h", "9 per 1d"], overrides: [${overrides}] }]` });
  try {
    for (let times = 0; times < 3; times += 1) {
      await post(mine.http, "/v1/check", { attributes: { path: "/", headers: { "x-user": "globex" } } });
    }
    const page = await open(browser, `${mine.admin}/dashboard`);
    await lookUp(page, "users", "globex");
    await page.locator("#chart-key canvas").waitFor({ state: "visible" });
    // The limits of one window count the same requests, and the last override has not been used.
    assert.deepEqual(await page.locator("#chart-key .legend li").allInnerTexts(), [
      "4 per 1h sliding-window\n75 %",
      "9 per 1d sliding-window\n0 %",
      "6 per 1h sliding-window if header:x-user: acme or others\n50 %",
    ]);
    assert.deepEqual(await flaws(page), []);
    await page.done();
  } finally {
    await mine.stop();
  }
});

test("a token bucket is used up to its burst, not to its limit", async () => {
  const limits = ["10 per 1h token-bucket burst 50", "60 per 1h token-bucket burst 40"];
  const mine = await serve({ config: `policies: [{ name: first, key: "{header:x-user}", limits: ["${limits[0]}"] }, { name: second, key: "{header:x-user}", limits: ["${limits[1]}"] }]` });
  try {
    for (let times = 0; times < 30; times += 1) await post(mine.http, "/v1/check", { policy: "first", key: "acme" });
    const page = await open(browser, `${mine.admin}/dashboard`);
    for (const [policy, left, used] of [["first", "20 of 50", "60 %"], ["second", "40 of 40", "0 %"]]) {
      await lookUp(page, policy, "acme");
      await shows(page, "#lookup-limits td:nth-child(3)", left);
      await shows(page, "#chart-key .legend li", new RegExp(`${used}$`));
    }
    await page.done();
  } finally {
    await mine.stop();
  }
});

test("a key of dots is looked at like any other", async () => {
  const page = await dashboard();
  await page.locator("#lookup-policy option[value=login]").waitFor({ state: "attached" });
  await page.selectOption("#lookup-policy", "login");
  await page.fill("#lookup-key", "..");
  await page.click("#lookup button[type=submit]");
  await shows(page, "#lookup-note", ".. under login: nothing is counted under it, would pass.");
  await page.done();
});

test("a credential is masked, found by its plain value or its masked form, and reset", async () => {
  const mine = await serve({ config: MASKED });
  const secret = "sk_live_4eC39HqLyjWD";
  for (let times = 0; times < 3; times += 1) {
    await post(mine.http, "/v1/check", { attributes: { path: "/api/x", headers: { "x-api-key": secret } } });
  }
  const page = await open(browser, `${mine.admin}/dashboard`);
  await page.selectOption("#by", "would_deny");
  const button = page.locator("#top-keys button", { hasText: /^header:x-api-key=sk_l\.\.\.#[0-9a-f]{16}$/ });
  await button.waitFor();
  assert.ok(!(await page.content()).includes(secret));
  await button.click();
  await shows(page, "#lookup-note", /^header:x-api-key=sk_l\.\.\.#\w+ under watched: would be denied, were it enforced\.$/);
  await page.fill("#lookup-key", secret);
  await page.click("#lookup button[type=submit]");
  await shows(page, "#lookup-note", `header:x-api-key=${secret} under watched: would be denied, were it enforced.`);
  await page.click("#reset");
  await page.click("#confirm-reset");
  await shows(page, "#lookup-note", new RegExp(`^Reset at [\\d:]{8}\\. header:x-api-key=${secret} under watched: would pass\\.$`));
  await page.done();
  await mine.stop();
});

test("a key says when it frees, and is free after a reset", async () => {
  const page = await dashboard();
  await page.locator("#lookup-policy option[value=login]").waitFor({ state: "attached" });
  await page.selectOption("#lookup-policy", "login");
  for (let times = 0; times < 6; times += 1) {
    await post(server.http, "/v1/check", { attributes: { method: "POST", path: "/login", client_ip: "192.0.2.9" } });
  }
  await page.fill("#lookup-key", "192.0.2.9");
  await page.click("#lookup button[type=submit]");
  await shows(page, "#lookup-note", "192.0.2.9 under login: would be denied.");
  assert.match(await text(page, "#lookup-limits"), /0 of 5\s+(60|59) min\s+(60|59) min/);
  assert.ok(await page.isVisible("#lookup-limits .bar i"), "the bar of an exhausted limit is full");
  // A reset needs a confirmation and can be cancelled.
  await page.click("#reset");
  await shows(page, "#confirm-text", "Reset 192.0.2.9 under login?");
  assert.deepEqual(await page.locator("#confirm-text code").allInnerTexts(), ["192.0.2.9", "login"]);
  await page.click("#confirm-cancel");
  await shows(page, "#lookup-note", "Nothing was reset.");
  assert.match(await text(page, "#lookup-limits"), /0 of 5/);
  await page.click("#reset");
  await page.click("#confirm-reset");
  await shows(page, "#lookup-note", /^Reset at [\d:]{8}\. 192\.0\.2\.9 under login: would pass\.$/);
  assert.match(await text(page, "#lookup-limits"), /5 of 5\s+now\s+now/);
  // The verdict is refreshed with the table, also while the button has the focus.
  for (let times = 0; times < 5; times += 1) {
    await post(server.http, "/v1/check", { attributes: { method: "POST", path: "/login", client_ip: "192.0.2.9" } });
  }
  await shows(page, "#lookup-note", /^Reset at [\d:]{8}\. 192\.0\.2\.9 under login: would be denied\.$/);
  assert.match(await text(page, "#lookup-limits"), /0 of 5/);
  await page.fill("#lookup-key", "");
  assert.ok(await page.isDisabled("#reset"));
  assert.ok(await page.isHidden("#lookup-view"), "an empty key has no result");
  assert.equal(await text(page, "#lookup-note"), "");
  await page.done();
});

test("a reset that fails is reported until the next action", async () => {
  const page = await dashboard();
  page.expects(/503/);
  await lookUp(page, "login", "192.0.2.11");
  await shows(page, "#lookup-note", "192.0.2.11 under login");
  await page.route(/keys\?key=/, (route) => (route.request().method() === "DELETE"
    ? route.fulfill({ status: 503, json: { detail: "the store is unavailable" } }) : route.continue()));
  await page.click("#reset");
  await page.click("#confirm-reset");
  const failed = "Not reset: the store is unavailable. 192.0.2.11 under login: nothing is counted under it, would pass.";
  await shows(page, "#lookup-note", failed);
  for (let polls = 0; polls < 2; polls += 1) await (await page.waitForResponse(/keys\?key=/)).finished();
  assert.equal(await text(page, "#lookup-note"), failed);
  await page.done();
});

test("denials can be held still", async () => {
  const page = await dashboard();
  await page.locator("#events td.mono").first().waitFor();
  await page.click("#pause");
  const first = await text(page, "#events tr:first-child");
  await positive(page, "#tile-denied");
  assert.equal(await text(page, "#events tr:first-child"), first);
  assert.equal(await text(page, "#pause"), "Go on");
  await page.done();
});

// The page cannot know of suppressed denials before the next one, so it says when their number follows.
test("denials beyond ten per second are counted with the next one", async () => {
  const mine = await serve({ config: POLICIES });
  try {
    const page = await open(browser, `${mine.admin}/dashboard`);
    await shows(page, "#events", "None yet.");
    assert.equal(await text(page, "#events-note"), "At most 10 per policy and second. The number of those not shown follows with the next denial of that policy.");
    const check = { attributes: { method: "POST", path: "/login", client_ip: "192.0.2.5" } };
    const burst = (count) => post(mine.http, "/v1/check/batch", { checks: Array(count).fill(check) });
    // Within one second of the server's clock.
    await page.waitForTimeout(1050 - (Date.now() % 1000));
    await burst(30);
    await page.waitForFunction(() => document.querySelectorAll("#events td.mono").length >= 20);
    assert.equal(await page.locator("#events td.empty").count(), 0);
    await page.waitForTimeout(1000);
    await burst(1);
    await shows(page, "#events td.empty", "15 more of login not shown");
    await page.done();
  } finally {
    await mine.stop();
  }
});

test("a refused config is shown with its reason", async () => {
  const mine = await serve({ config: POLICIES });
  try {
    const page = await open(browser, `${mine.admin}/dashboard`);
    await shows(page, "#config", "0 refused");
    assert.ok(await page.isHidden("#refusal"));
    mine.write(POLICIES.replace("5 per 1h", "5 per <b>fortnight"));
    await shows(page, "#refusal-when", "the old config stays in force");
    assert.match(await text(page, "#refusal-why"), /<b>fortnight/);
    mine.write(POLICIES.replace("5 per 1h", "6 per 1h"));
    await shows(page, "#refusal-when", "a later one was taken");
    await shows(page, "#policies", "6 per 1h sliding-log");
    await page.done();
  } finally {
    await mine.stop();
  }
});

test("a store that is gone is seen, and how answers are made then", async () => {
  const config = `store: redis://127.0.0.1:1\n${POLICIES}`;
  const mine = await serve({ config });
  try {
    const page = await open(browser, `${mine.admin}/dashboard`);
    await shows(page, "#store dd", "down");
    const asking = setInterval(() => post(mine.http, "/v1/check", { policy: "api", key: "a" }).catch(() => {}), 50);
    await page.waitForFunction(() => Number.parseFloat(document.querySelector("#decided li:nth-child(2) .num").textContent) > 0);
    clearInterval(asking);
    assert.match(await text(page, "#decided li:nth-child(2)"), /local/);
    await shows(page, "#store dd", /\d down/);
    await page.done();
  } finally {
    await mine.stop();
  }
});

test("nodes that share the store are listed, and those with other policies are marked", async () => {
  const page = await dashboard();
  await shows(page, "#state", "ready");
  assert.ok(await page.isHidden("#fleet"), "this server shares no store");
  const own = fleetNode("a:8080", { own: true });
  const other = fleetNode(HOSTILE, { fingerprint: "c1d94e0b7a26385f", differs: true });
  await shareStore(page, [own, other]);
  await shows(page, "#fleet-note.alarm", "1 of 2 nodes");
  const rows = await page.locator("#fleet-nodes tr").allInnerTexts();
  assert.match(rows[0], /<img src=x.*different.*c1d94e0b7a26385f.*3 s ago/s, "the one that differs is first");
  assert.match(rows[1], /a:8080 \(this server\).*the same.*6f0d3a51c2b87e94/s);
  assert.equal(await page.title(), "tidegate dashboard");
  await page.unroute("**/admin/v1/fleet");
  await shareStore(page, [own, fleetNode("b:8080")]);
  await shows(page, "#fleet-note:not(.alarm)", "the same policies: 2 in all");
  await page.unroute("**/admin/v1/fleet");
  await shareStore(page, [fleetNode("a:8080", { own: true, last_seen_seconds: 42 })]);
  await shows(page, "#fleet-note", "has not answered for 42 s");
  await page.done();
});

test("a token opens it, and is forgotten when asked", async () => {
  const mine = await serve({ config: POLICIES, env: { TIDEGATE_ADMIN_TOKEN: "open-sesame" } });
  try {
    const page = await open(browser, `${mine.admin}/dashboard`);
    page.expects(/401/);
    await page.locator("#token").waitFor();
    const left = (selector) => page.locator(selector).evaluate((one) => one.getBoundingClientRect().left);
    assert.equal(await left("#login"), await left("header img"), "the form is aligned with the page");
    await page.fill("#token", "wrong");
    await page.click("#login button");
    await shows(page, "#login-error", "This token was refused.");
    await page.fill("#token", "open-sesame");
    await page.click("#login button");
    await shows(page, "#state", "ready");
    assert.ok(await page.isVisible("#content"));
    for (let times = 0; times < 6; times += 1) {
      await post(mine.http, "/v1/check", { attributes: { method: "POST", path: "/login", client_ip: "192.0.2.77" } });
    }
    for (const place of ["#events td.mono", "#top-keys button"]) await shows(page, place, "192.0.2.77");
    await lookUp(page, "login", "192.0.2.77");
    await shows(page, "#lookup-note", "192.0.2.77 under login: would be denied.");
    await page.click("#forget");
    await shows(page, "#state", "locked");
    assert.ok(await page.isHidden("#content"));
    assert.ok(!(await page.content()).includes("192.0.2.77"), "the key is removed from the page");
    assert.equal(await page.inputValue("#lookup-key"), "");
    await page.fill("#token", "open-sesame");
    await page.click("#login button");
    await shows(page, "#state", "ready");
    assert.ok(await page.isHidden("#lookup-view"));
    await page.done();
  } finally {
    await mine.stop();
  }
});

const tiles = (page) => page.locator(".tile p").allInnerTexts();

test("a server that goes away is noticed, and old numbers do not look current", async () => {
  const mine = await serve({ config: POLICIES });
  const page = await open(browser, `${mine.admin}/dashboard`);
  page.expects(/ERR_/);
  await shows(page, "#state", "ready");
  assert.ok((await tiles(page)).includes("0"));
  await lookUp(page, "login", "192.0.2.1");
  await shows(page, "#lookup-note", "192.0.2.1 under login");
  await mine.stop();
  await shows(page, "#state", /^no answer since \d\d:\d\d:\d\d$/);
  assert.deepEqual(await tiles(page), Array(6).fill("–"));
  assert.equal(await page.locator("#content.stale").count(), 1);
  assert.ok(await page.isVisible("#lookup-limits"), "the key stays");
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  const { top, bottom } = await page.locator("#state").evaluate((badge) => badge.getBoundingClientRect().toJSON());
  assert.ok(top >= 0 && bottom <= 900, "the badge is visible at the end of the page");
  await page.done();
});

test("a server that hangs is noticed", async () => {
  const page = await dashboard();
  await shows(page, "#state", "ready");
  await page.route("**/admin/v1/stats", () => {});
  await shows(page, "#state", "no answer since");
  assert.deepEqual(await tiles(page), Array(6).fill("–"));
  await page.unroute("**/admin/v1/stats");
  await shows(page, "#state", "ready");
  await positive(page, "#tile-allowed");
  assert.equal(await page.locator("#content.stale").count(), 0);
  await page.done();
});

/** Records the times and values that the charts hand to uPlot. */
const spyOnCharts = () => {
  globalThis.drawn = {};
  const remember = (data, place) => { globalThis.drawn[place.parentElement.id] = data.map((column) => [...column]); };
  let made;
  Object.defineProperty(globalThis, "uPlot", {
    configurable: true,
    get: () => made,
    set(Plot) {
      made = function spied(options, data, place) {
        const plot = new Plot(options, data, place);
        const { setData } = plot;
        plot.setData = (next, ...rest) => { remember(next, place); setData(next, ...rest); };
        remember(data, place);
        return plot;
      };
    },
  });
};
const points = (page, chart) => page.evaluate((id) => globalThis.drawn[id], chart);

/** Opens the dashboard with a record of what the charts draw. */
async function spied(url, prepare = () => {}) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.addInitScript(spyOnCharts);
  await page.addInitScript(prepare);
  await page.goto(`${url}/dashboard`);
  return page;
}

/** Waits until a condition on the points of a chart holds. Returns the points. */
async function until(page, chart, condition) {
  const deadline = Date.now() + 30_000;
  for (;;) {
    const drawn = await points(page, chart);
    if (drawn && condition(drawn)) return drawn;
    assert.ok(Date.now() < deadline, `${condition}: ${JSON.stringify(drawn)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const isAscending = (times) => times.every((time, index) => index === 0 || time > times[index - 1]);

test("charts begin before the page was opened", async () => {
  const opened = Date.now() / 1000;
  const mine = await serve({ config: POLICIES });
  try {
    const ask = () => post(mine.http, "/v1/check", { attributes: { method: "POST", path: "/login", client_ip: "192.0.2.1" } });
    for (let times = 0; times < 8; times += 1) await ask();
    const samples = async () => (await (await fetch(`${mine.admin}/admin/v1/history`)).json()).samples;
    const sum = (all, outcome) => all.flatMap(({ requests }) => requests).reduce((sum, one) => sum + one[outcome], 0);
    while (sum(await samples(), "denied") < 3 || (await samples()).length < 4) await new Promise((resolve) => setTimeout(resolve, 50));
    const page = await spied(mine.admin);
    const [times, allowed, denied] = await until(page, "chart-outcomes", ([times]) => times.length > 3);
    assert.ok(isAscending(times) && times[0] > opened - 2, `${times}`);
    assert.ok(Math.max(...allowed) > 0 && Math.max(...denied) > 0, "the requests were sent before the page was opened");
    await page.context().close();
  } finally {
    await mine.stop();
  }
});

test("requests are counted once, also under two limits", async () => {
  const mine = await serve({ config: `policies: [{ name: api, key: all, limits: ["6 per 1h", "600 per 1d"] }]` });
  try {
    for (let times = 0; times < 10; times += 1) await post(mine.http, "/v1/check", { policy: "api", key: "k" });
    const page = await spied(mine.admin);
    const sum = (column) => column.reduce((all, one) => all + (one ?? 0), 0);
    await until(page, "chart-outcomes", ([, allowed, denied]) => sum(denied) > 0 && sum(allowed) > sum(denied));
    const { requests } = await (await fetch(`${mine.admin}/admin/v1/stats`)).json();
    assert.deepEqual(requests.find(({ policy }) => policy === "api"), { policy: "api", allowed: 6, denied: 4, would_deny: 0 });
    await page.context().close();
  } finally {
    await mine.stop();
  }
});

test("the series of overrides are marked with their numbers, of which a few are listed", async () => {
  const marks = {
    1: "override 1", 2: "overrides 1 and 2", 3: "overrides 1, 2 and 3", 6: "overrides 1, 2, 3, 4, 5 and 6",
    7: "overrides 1, 2, 3, 4, 5 and 2 more", 9: "overrides 1, 2, 3, 4, 5 and 4 more",
  };
  const overrides = (count) => Array.from({ length: count }, (_, at) => `{ when: { client_ip: 192.0.2.${at} }, limits: 9 per 1h }`);
  const policy = (count) => `{ name: api-${count}, key: "{client_ip}", limits: 6 per 1h, overrides: [${overrides(count)}] }`;
  const mine = await serve({ config: `policies: [${Object.keys(marks).map(policy)}]` });
  try {
    const page = await open(browser, `${mine.admin}/dashboard`);
    await page.locator("#policies td", { hasText: "9 per 1h" }).first().waitFor();
    const rows = await page.evaluate(() => [...document.querySelectorAll("#policies tr")].map((row) =>
      [...row.cells].slice(0, 2).map((cell) => cell.textContent)));
    const expected = Object.entries(marks).flatMap(([count, mark]) => [
      [`api-${count}`, "6 per 1h sliding-window"],
      [`api-${count} (${mark})`, "9 per 1h sliding-window"],
    ]);
    assert.deepEqual(rows, expected);
    await page.done();
  } finally {
    await mine.stop();
  }
});

test("a hundred thousand keys are drawn, and ranked within the stated error", async () => {
  const mine = await serve({ config: `policies: [{ name: api, key: "{header:x-key}", limits: ["1 per 1h"] }]\nlog_keys: full` });
  try {
    const page = await spied(mine.admin);
    const check = (key) => ({ attributes: { path: "/", headers: { "x-key": key } }, cost: 2 });
    for (let from = 0; from < 100_000; from += 1000) {
      const keys = Array.from({ length: 1000 }, (_, number) => (number % 10 ? `key-${from + number}` : "frequent"));
      await post(mine.http, "/v1/check/batch", { checks: keys.map(check) });
    }
    await post(mine.http, "/v1/check/batch", { checks: Array.from({ length: 1000 }, (_, number) => ({ policy: "api", key: `tracked-${number}` })) });
    await until(page, "chart-keys", ([, keys]) => keys.at(-1) >= 1000);
    await page.locator("#top-keys tr").first().filter({ hasText: "frequent" }).waitFor();
    const rows = await page.locator("#top-keys tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
    assert.equal(rows.length, 10);
    const { keys } = await (await fetch(`${mine.admin}/admin/v1/top?n=1`)).json();
    const [{ name, count, error }] = keys.entries;
    assert.deepEqual([name, count >= 10_000, count - error <= 10_000], ["frequent", true, true], `${count} ${error}`);
    assert.ok(keys.unlisted_at_most <= 100_000 / 128, `${keys.unlisted_at_most}`);
    await page.context().close();
  } finally {
    await mine.stop();
  }
});

test("a sampled list is marked as an estimate, without an error", async () => {
  const page = await dashboard();
  const list = (name, encoded) => ({ entries: [{ policy: "api", name, encoded, count: 1024, error: 0 }], unlisted_at_most: 1024 });
  await page.route(/admin\/v1\/top/, (route) => {
    const isSampled = route.request().url().includes("by=allowed");
    return route.fulfill({ json: { sampled_one_in: isSampled ? 1024 : 1, covers_seconds: 60, keys: list(" k", "%20k"), routes: list("/r", null) } });
  });
  const row = (id) => page.locator(`#${id} tr`).evaluate((row) => [...row.cells].map((cell) => cell.textContent));
  await shows(page, "#top-note", "Last 60 s. The true count is between count − error and count; keys not listed: at most 1,024, routes: at most 1,024.");
  assert.deepEqual(await row("top-keys"), [" k", "api", "1,024", "0"]);
  assert.equal(await text(page, "#top-keys button"), " k", "the space of the key is shown");
  await page.selectOption("#by", "allowed");
  await shows(page, "#top-note", "Last 60 s. Counts are estimated from one request in 1,024: they may be too high or too low, and keys with few requests may be missing.");
  assert.deepEqual(await row("top-keys"), [" k", "api", "1,024", "–"]);
  assert.deepEqual(await row("top-routes"), ["/r", "api", "1,024", "–"]);
  await page.done();
});

test("a clock that steps does not disturb the charts", async () => {
  const page = await spied(server.admin, () => {
    const now = Date.now.bind(Date);
    globalThis.step = 0;
    Date.now = () => now() + globalThis.step;
  });
  await until(page, "chart-outcomes", ([times]) => times.length > 2);
  for (const step of [-3_600_000, 86_400_000]) {
    await page.evaluate((by) => { globalThis.step = by; }, step);
    const before = (await points(page, "chart-outcomes"))[0].at(-1);
    const [times, allowed] = await until(page, "chart-outcomes", ([times]) => times.at(-1) > before + 1);
    assert.ok(isAscending(times), `${times}`);
    assert.ok(times.at(-1) - times[0] < 400, "no point is hours away");
    assert.ok(allowed.every((value) => value === null || (value >= 0 && value < 100_000)), `${allowed}`);
  }
  await page.context().close();
});

test("a server that restarts under an open page leaves a gap", async () => {
  const config = POLICIES;
  let mine = await serve({ config });
  const { port } = new URL(mine.admin);
  const ask = () => post(mine.http, "/v1/check", { attributes: { method: "POST", path: "/login", client_ip: "192.0.2.1" } });
  for (let times = 0; times < 7; times += 1) await ask();
  const page = await spied(mine.admin);
  await lookUp(page, "login", "192.0.2.1");
  await until(page, "chart-key", ([, used]) => used.length > 1 && used.at(-1) === 1);
  const newest = (await until(page, "chart-outcomes", ([times]) => times.length > 2))[0].at(-1);
  await mine.stop();
  await shows(page, "#state", "no answer");
  mine = await serve({ config, admin: `127.0.0.1:${port}` });
  try {
    await shows(page, "#state", "ready");
    await ask();
    const [times, allowed, denied] = await until(page, "chart-outcomes", ([times]) => times.at(-1) > newest + 3);
    assert.ok(isAscending(times), `${times}`);
    assert.ok(allowed.includes(null), "the line is interrupted");
    assert.ok([...allowed, ...denied].every((value) => value === null || value >= 0), "counts that start again are not negative");
    const [keyTimes, used] = await until(page, "chart-key", ([, used]) => used.at(-1) > 0.1 && used.at(-1) < 1);
    assert.ok(isAscending(keyTimes), `${keyTimes}`);
    assert.equal(used[used.lastIndexOf(1) + 1], null, `the line of the key is interrupted: ${JSON.stringify(used)}`);
    await page.waitForFunction(() => Number.parseFloat(document.querySelector("#policies tr:nth-child(2) td:nth-child(5)").textContent) === 1);
    await page.context().close();
  } finally {
    await mine.stop();
  }
});

test("the line of a key is interrupted while the server does not answer", async () => {
  const page = await spied(server.admin);
  await lookUp(page, "login", "192.0.2.7");
  await until(page, "chart-key", ([times]) => times.length > 1);
  await page.route("**/admin/v1/stats", (route) => route.abort());
  await page.waitForTimeout(4500);
  await page.unroute("**/admin/v1/stats");
  const [times, used] = await until(page, "chart-key", ([, used]) => used.includes(null));
  assert.ok(isAscending(times), `${times}`);
  assert.equal(used.filter((value) => value === null).length, 1, `${used}`);
  await page.context().close();
});

test("a key is drawn over time, with all of its limits", async () => {
  const mine = await serve({ config: `policies: [{ name: api, key: all, limits: ["4 per 1h sliding-log", "8 per 1d sliding-log"] }]` });
  try {
    const ask = () => post(mine.http, "/v1/check", { policy: "api", key: "k" });
    await ask();
    const page = await spied(mine.admin);
    await page.locator("#lookup-policy option[value=api]").waitFor({ state: "attached" });
    await page.fill("#lookup-key", "k");
    await page.click("#lookup button[type=submit]");
    await until(page, "chart-key", ([times]) => times.length > 1);
    await ask();
    const isDrawn = ([, hour, day]) => hour.at(-1) === 0.5 && day.at(-1) === 0.25;
    const [times, hour, day] = await until(page, "chart-key", isDrawn);
    assert.ok(isAscending(times) && hour[0] === 0.25 && day[0] === 0.125, `${hour} ${day}`);
    assert.deepEqual(await page.locator("#chart-key .legend span").allInnerTexts(), ["4 per 1h sliding-log", "8 per 1d sliding-log"]);
    await page.context().close();
  } finally {
    await mine.stop();
  }
});

test("the chart of a key has the limits of that key after another was drawn", async () => {
  const mine = await serve({ config: `policies:
  - { name: two, key: all, limits: ["4 per 1h sliding-log", "8 per 1d sliding-log"] }
  - { name: one, key: all, limits: ["5 per 1h sliding-log"] }
  - { name: other, key: all, limits: ["6 per 1h sliding-log"] }` });
  try {
    const page = await open(browser, `${mine.admin}/dashboard`);
    const legends = { two: ["4 per 1h sliding-log", "8 per 1d sliding-log"], one: ["5 per 1h sliding-log"], other: ["6 per 1h sliding-log"] };
    for (const policy of ["two", "one", "other", "two"]) {
      await lookUp(page, policy, "k");
      await shows(page, "#lookup-note", `k under ${policy}: nothing is counted under it, would pass.`);
      await page.locator("#chart-key canvas").waitFor({ state: "visible" });
      assert.deepEqual(await page.locator("#chart-key .legend span").allInnerTexts(), legends[policy]);
      assert.equal(await text(page, "#lookup-note"), `k under ${policy}: nothing is counted under it, would pass.`);
    }
    await page.done();
  } finally {
    await mine.stop();
  }
});

test("a late answer to an earlier lookup is dropped", async () => {
  const page = await dashboard();
  let release;
  const held = new Promise((resolve) => { release = resolve; });
  await page.route(/keys\?key=first$/, async (route) => {
    await held;
    await route.continue();
  });
  await lookUp(page, "login", "first");
  await lookUp(page, "login", "second");
  await shows(page, "#lookup-note", "second under login");
  const late = page.waitForResponse(/keys\?key=first$/);
  release();
  await (await late).finished();
  // The page refreshes the key that it shows.
  const next = await page.waitForRequest(/keys\?key=/);
  assert.match(next.url(), /key=second$/);
  assert.match(await text(page, "#lookup-note"), /^second under login/);
  await page.done();
});

test("denials and charts show times of the same clock", async () => {
  const page = await dashboard({ locale: "en-US" });
  await page.locator("#events td.mono").first().waitFor();
  assert.match(await text(page, "#events tr:first-child td:first-child"), /^\d\d:\d\d:\d\d$/);
  await page.done();
});

test("no chart is empty on a server without requests", async () => {
  const mine = await serve({ config: POLICIES });
  try {
    const page = await open(browser, `${mine.admin}/dashboard`);
    await shows(page, "#chart-policies", "No requests in the last five minutes.");
    await shows(page, "#chart-latency", "No decision was timed in the last five minutes.");
    await page.locator("#chart-outcomes canvas").waitFor();
    await page.done();
  } finally {
    await mine.stop();
  }
});

/** Returns the number of pixels of a chart that have the color of a line. */
const pixelsOf = (page, chart, index) => page.evaluate(([id, line]) => {
  const place = document.getElementById(id);
  const canvas = place.querySelector("canvas");
  const wanted = getComputedStyle(place.querySelectorAll(".legend i")[line]).borderTopColor.match(/\d+/g).map(Number);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let at = 0; at < data.length; at += 4) count += wanted.every((value, channel) => data[at + channel] === value) && data[at + 3] === 255;
  return count;
}, [chart, index]);

// Regression: the page said that no decision was timed if all timed ones were in one second.
test("a single second with timed decisions is drawn as a point", async () => {
  const mine = await serve({ config: POLICIES });
  try {
    const check = { policy: "api", key: "k" };
    await post(mine.http, "/v1/check/batch", { checks: Array(1000).fill(check) });
    const page = await spied(mine.admin);
    const timed = await until(page, "chart-latency", ([, ...lines]) => lines.every((line) => line.some(Number.isFinite)));
    assert.equal(timed[2].filter(Number.isFinite).length, 1, `${timed[2]}`);
    assert.ok(await page.isHidden("#chart-latency .none"));
    assert.ok(await pixelsOf(page, "chart-latency", 1) > 8, "the point is visible");
    await page.context().close();
  } finally {
    await mine.stop();
  }
});

const LONG = "a-policy-with-a-name-of-64-characters-which-is-the-longest-of-al";

for (const width of [390, 1400]) {
  test(`no column is cut off under a long policy name, ${width} px`, async () => {
    const mine = await serve({ config: POLICIES.replaceAll(/name: (login|watched)/g, (_, name) => `name: ${LONG.slice(0, 64 - name.length)}${name}`) });
    try {
      const page = await open(browser, `${mine.admin}/dashboard`, { viewport: { width, height: 844 } });
      const route = `/api/${"a-long-route/".repeat(6)}`;
      for (let times = 0; times < 8; times += 1) {
        await post(mine.http, "/v1/check", { attributes: { method: "POST", path: "/login", client_ip: "2001:db8:85a3::8a2e:370:7334" } });
        await post(mine.http, "/v1/check", { attributes: { path: route, headers: { "x-api-key": "k".repeat(64) } } });
      }
      await page.locator("#top-keys button").first().click();
      await page.locator("#lookup-limits .bar").waitFor();
      await page.selectOption("#by", "would_deny");
      await page.locator("#top-routes td.mono", { hasText: "a-long-route" }).waitFor();
      await page.locator("#events td.mono", { hasText: "a-long-route" }).first().waitFor();
      const { cut, counts } = await page.evaluate(() => {
        const cells = [...document.querySelectorAll("td")];
        const isCut = (cell) => {
          const [area, { left, right }] = [cell.closest(".scroll").getBoundingClientRect(), cell.getBoundingClientRect()];
          return left < area.left - 1 || right > area.right + 1 || (!cell.matches(".id") && cell.scrollWidth > cell.clientWidth + 1);
        };
        const ids = ["policies", "top-keys", "top-routes", "lookup-limits", "events"];
        return { cut: cells.filter(isCut).map((cell) => cell.textContent), counts: ids.map((id) => document.querySelectorAll(`#${id} td`).length) };
      });
      assert.deepEqual(cut, []);
      assert.ok(counts.every((count) => count >= 4), `${counts}`);
      assert.equal(await isTooWide(page), false);
      await page.done();
    } finally {
      await mine.stop();
    }
  });
}

test("tables are blocks with labels on a phone", async () => {
  const page = await dashboard({ viewport: { width: 390, height: 844 } });
  await page.locator("#events td.mono").first().waitFor();
  const labels = (selector) => page.locator(selector).first().evaluate((row) => [...row.cells].map((cell) => cell.dataset.label));
  assert.deepEqual(await labels("#events tr:has(td.mono)"), ["Time", "Policy", "Key", "Route", "Limit", "Retry after", "Request"]);
  assert.deepEqual(await labels("#top-keys tr:has(button)"), ["Key", "Policy", "Count", "Error"]);
  const [route, retry] = await page.locator("#events tr:has(td.mono)").first().evaluate((row) =>
    [row.cells[3], row.cells[5]].map((cell) => cell.getBoundingClientRect().right));
  assert.equal(retry, route, "the wait is aligned with the other values");
  await page.done();
});

for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    test(`nothing is wrong for screen readers, ${colorScheme}, ${width} wide`, async () => {
      const page = await dashboard({ colorScheme, viewport: { width, height: 900 } });
      await positive(page, "#tile-would");
      await page.locator("#events td.mono").first().waitFor();
      assert.deepEqual(await flaws(page), []);
      assert.equal(await isTooWide(page), false);
      await page.done();
    });
  }
}

/** Returns the lowest contrast of the borders of all fields with what is around and inside them. */
const fieldContrast = (page) => page.evaluate(() => {
  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = (color) => {
    const [r, g, b] = channels(color).map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const fields = [...document.querySelectorAll("input, select")].map((field) => {
    const { borderTopColor, backgroundColor } = getComputedStyle(field);
    const around = getComputedStyle(field.closest(".card")).backgroundColor;
    return Math.min(contrast(borderTopColor, backgroundColor), contrast(borderTopColor, around));
  });
  return { count: fields.length, least: Math.min(...fields) };
});

for (const colorScheme of ["light", "dark"]) {
  test(`the borders of fields are visible, ${colorScheme}`, async () => {
    const page = await dashboard({ colorScheme });
    const { count, least } = await fieldContrast(page);
    assert.ok(count > 4 && least >= 3, `${least} of ${count}`);
    await page.done();
  });
}

test("all files together are small", async () => {
  const paths = ["", "/dashboard.css", "/dashboard.js", "/api.js", "/charts.js", "/format.js", "/intervals.js", "/uplot.css", "/uplot.js", "/icon.svg"];
  const sizes = await Promise.all(paths.map(async (path) =>
    gzipSync(Buffer.from(await (await fetch(`${server.admin}/dashboard${path}`)).arrayBuffer())).length));
  assert.ok(sizes.reduce((all, one) => all + one, 0) <= 300 * 1024, `${sizes}`);
});
