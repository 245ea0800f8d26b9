// The dashboard while the config of its server changes, and when the server answers with errors.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browse, flaws, open, serve } from "./harness.mjs";

const policy = (name, limit, more = "") => `  - { name: ${name}, key: all, limits: ["${limit}"]${more} }\n`;
const config = (...policies) => `policies:\n${policies.join("")}`;
const ALONE = config(policy("api", "2 per 1h"));

let browser;
before(async () => { browser = await browse(); });
after(() => browser?.close());

const shows = (page, selector, wanted) => page.locator(selector).filter({ hasText: wanted }).first().waitFor();

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

test("an error of the server is not called no answer, and the error page of a proxy is", async () => {
  await onDashboard(ALONE, async (page) => {
    page.expects(/the store is unavailable/);
    await page.route("**/admin/v1/fleet", (route) => route.fulfill({ status: 503, json: { detail: "the store is unavailable" } }));
    await shows(page, "#state", /^error: the store is unavailable$/);
    assert.equal(await page.locator("#content.stale").count(), 0);
    await page.unroute("**/admin/v1/fleet");
    await page.route("**/admin/v1/stats", (route) => route.fulfill({ status: 502, contentType: "text/html", body: "<h1>Bad gateway</h1>" }));
    await shows(page, "#state", /^no answer since /);
    await page.unroute("**/admin/v1/stats");
    await shows(page, "#state", /^ready$/);
  });
});
