// The dashboard while the config of its server changes, and when the server answers with errors.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browse, flaws, open, post, serve } from "./harness.mjs";

const policy = (name, limit, more = "") => `  - { name: ${name}, key: all, limits: ["${limit}"]${more} }\n`;
const config = (...policies) => `policies:\n${policies.join("")}`;
const ALONE = config(policy("api", "2 per 1h"));

let browser;
before(async () => { browser = await browse(); });
after(() => browser?.close());

const shows = (page, selector, wanted) => page.locator(selector).filter({ hasText: wanted }).first().waitFor();
const choices = (page, id) => page.locator(`#${id} option`).evaluateAll((all) => all.map((one) => one.value));
const names = (page) => page.evaluate(() => [...document.querySelectorAll("#policies tr")].map((row) =>
  [...row.cells].slice(0, 3).map((cell) => cell.textContent)));

/** Runs a test on the dashboard of a new server, which expects responses with errors. */
async function onDashboard(yaml, run) {
  const mine = await serve({ config: yaml });
  try {
    const page = await open(browser, `${mine.admin}/dashboard`);
    page.expects(/status of [45]\d\d/);
    await shows(page, "#state", "ready");
    await run(page, mine);
    await page.unrouteAll({ behavior: "wait" });
    await page.done();
  } finally {
    await mine.stop();
  }
}

// Regression: the list of the removed policy was a 404, and the page said that the server did not answer.
test("a removed policy is no longer chosen", async () => {
  await onDashboard(config(policy("api", "2 per 1h"), policy("other", "2 per 1h")), async (page, mine) => {
    await page.locator("#policy option[value=other]").waitFor({ state: "attached" });
    await page.selectOption("#policy", "other");
    await page.selectOption("#lookup-policy", "other");
    mine.write(ALONE);
    await shows(page, "#config", "1 taken");
    await page.waitForResponse((response) => response.url().endsWith("/top?by=denied&n=10") && response.ok());
    assert.deepEqual(await choices(page, "policy"), ["", "api"]);
    assert.deepEqual(await choices(page, "lookup-policy"), ["api"]);
    await shows(page, "#top-note:not(.alarm)", /^Last /);
    assert.equal(await page.textContent("#state"), "ready");
  });
});

test("an error about the rankings is shown in their place, and the page goes on", async () => {
  await onDashboard(ALONE, async (page) => {
    await shows(page, "#top-keys", "Nobody lately.");
    const detail = "there is no policy `<b>`: see /admin/v1/policies";
    await page.route("**/admin/v1/top?*", (route) => route.fulfill({ status: 404, json: { detail } }));
    await shows(page, "#top-note.alarm", detail);
    await shows(page, "#top-keys", "Unknown.");
    await page.waitForResponse("**/admin/v1/fleet");
    assert.equal(await page.textContent("#state"), "ready");
    assert.equal(await page.locator("#content.stale").count(), 0);
    assert.deepEqual(await flaws(page), []);
    await page.unroute("**/admin/v1/top?*");
    await shows(page, "#top-note:not(.alarm)", /^Last /);
  });
});

test("an error about the fleet is shown in its place, and the page goes on", async () => {
  await onDashboard(ALONE, async (page) => {
    await page.route("**/admin/v1/fleet", (route) => route.fulfill({ status: 503, json: { detail: "the store is unavailable" } }));
    await page.waitForFunction(() => document.querySelector("#fleet-note").textContent === "the store is unavailable");
    assert.equal(await page.textContent("#state"), "ready");
    assert.equal(await page.locator("#content.stale").count(), 0);
  });
});

test("an error of the server is not called no answer, and the error page of a proxy is", async () => {
  await onDashboard(ALONE, async (page) => {
    page.expects(/the store is unavailable/);
    await page.route("**/admin/v1/stats", (route) => route.fulfill({ status: 503, json: { detail: "the store is unavailable" } }));
    await shows(page, "#state", /^error: the store is unavailable$/);
    assert.equal(await page.locator("#content.stale").count(), 1);
    await page.unroute("**/admin/v1/stats");
    await shows(page, "#state", /^ready$/);
    await page.route("**/admin/v1/stats", (route) => route.fulfill({ status: 502, contentType: "text/html", body: "<h1>Bad gateway</h1>" }));
    await shows(page, "#state", /^no answer since /);
    await page.unroute("**/admin/v1/stats");
    await shows(page, "#state", /^ready$/);
  });
});

// Regression: limits and policies that were gone looked the same as those in force.
test("limits that are no longer in force are marked, or hidden if they decided nothing", async () => {
  const limit = (text) => `${text} sliding-window`;
  await onDashboard(ALONE, async (page, mine) => {
    await shows(page, "#policies", "2 per 1h");
    await post(mine.http, "/v1/check", { policy: "api", key: "k" });
    mine.write(config(policy("api", "3 per 2h")));
    await shows(page, "#policies", "3 per 2h");
    assert.deepEqual(await names(page), [
      ["api (no longer in force)", limit("2 per 1h"), "enforce"],
      ["api", limit("3 per 2h"), "enforce"],
    ]);
    mine.write(config(policy("other", "4 per 1h", ", mode: observe")));
    await shows(page, "#policies", "observe");
    assert.deepEqual(await names(page), [
      ["api (no longer in force)", limit("2 per 1h"), "enforce"],
      ["other", limit("4 per 1h"), "observe"],
    ]);
    assert.deepEqual(await choices(page, "policy"), ["", "other"]);
    assert.deepEqual(await choices(page, "lookup-policy"), ["other"]);
    assert.deepEqual(await flaws(page), []);
  });
});
