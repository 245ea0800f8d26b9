// The page of `tidegate replay --html` in a real browser.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { browse, flaws, isTooWide, open } from "./harness.mjs";

const HOSTILE = ["</script><script>document.title = 'taken over'</script>", "'\"><img src=x onerror=alert(1)>", "\u202eevil \u05e9\u05dc\u05d5\u05dd", "x".repeat(5000)];
const START_US = 1_700_000_000_000_000;

let browser;
let home;

before(async () => {
  browser = await browse();
  home = mkdtempSync(join(tmpdir(), "tidegate-report-"));
});

after(async () => {
  await browser.close();
  rmSync(home, { recursive: true, force: true });
});

/** Replays lines of `[second, key]` and returns the address of the page. */
function report(name, lines, args) {
  const trace = join(home, `${name}.csv`);
  const quoted = (key) => `"${key.replaceAll('"', '""')}"`;
  writeFileSync(trace, lines.map(([second, key]) => `${START_US + Math.round(second * 1e6)},${quoted(key)}\n`).join(""));
  const page = join(home, `${name}.html`);
  execFileSync(process.env.TIDEGATE_BIN, ["replay", trace, "--html", page, ...args], { stdio: ["ignore", "ignore", "inherit"] });
  return pathToFileURL(page).href;
}

const hostile = () => Array.from({ length: 400 }, (_, index) => HOSTILE.map((key) => [index / 10, key])).flat();

test("begins with the result under the requested algorithm", async () => {
  const lines = [...Array.from({ length: 15 }, () => [0, "busy"]), [1, "calm"]];
  const page = await open(browser, report("result", lines, ["--limit", "10 per 10s fixed-window", "--algorithm", "all"]));
  assert.equal(await page.textContent("#lead"), "fixed-window would have denied 31.3 % of requests: 5 of 16, from 1 of 2 keys.");
  assert.match(await page.textContent("#findings"), /^The largest burst was 15 within 10s, by the key busy, ending at /);
  assert.match(await page.textContent("#about"), /10 per 10s fixed-window/);
  assert.equal(await page.locator("#algorithm option:checked").textContent(), "fixed-window");
  assert.equal(await page.textContent("#keys-of"), "under fixed-window");
  await page.selectOption("#algorithm", { label: "token-bucket" });
  assert.equal(await page.textContent("#keys-of"), "under token-bucket");
  await page.done();
});

test("algorithms and keys that are equal are named as equal", async () => {
  // Two bursts around the end of a window: only fixed-window and sliding-counter admit some of the second one.
  const lines = [9.5, 10.5].flatMap((second) => ["a", "b"].flatMap((key) => Array.from({ length: 10 }, () => [second, key])));
  const page = await open(browser, report("equals", lines, ["--limit", "10 per 10s sliding-log", "--algorithm", "all"]));
  const findings = await page.textContent("#findings");
  assert.match(findings, /The key a was denied 10 of 20 requests; 1 other key had as many denials, and none had more\./);
  assert.match(findings, /Of 5 algorithms, fixed-window would have denied the fewest requests \(0\), and sliding-log and sliding-window the most \(20\)\./);
  await page.done();
});

test("hostile keys are text, in every width and color scheme", async () => {
  const url = report("hostile", hostile(), ["--limit", "5 per 1s", "--limit", "500 per 1m"]);
  for (const width of [390, 1400]) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await open(browser, url, { viewport: { width, height: 900 }, colorScheme });
      assert.equal(await page.title(), "tidegate report");
      assert.equal(await page.locator("img").count(), 0);
      assert.ok((await page.textContent("#denied")).includes(HOSTILE[0]));
      assert.ok(!(await page.textContent("main")).includes("\u202e"), "direction marks are escaped");
      assert.equal(await isTooWide(page), false, `${width}, ${colorScheme}`);
      const heads = await page.locator("th").evaluateAll((all) => all.map((head) => head.clientHeight));
      assert.ok(Math.max(...heads) < 90, `words of a table's head are not broken: ${heads}`);
      assert.deepEqual(await flaws(page), [], `${width}, ${colorScheme}`);
      await page.done();
    }
  }
});

test("the ten keys of a list are visible without scrolling in it", async () => {
  const hosts = Array.from({ length: 10 }, (_, number) => `host-${number}.department.example.com`);
  const url = report("hosts", Array.from({ length: 40 }, (_, index) => hosts.map((host) => [index / 10, host])).flat(), ["--limit", "5 per 1s"]);
  for (const width of [390, 1400]) {
    const page = await open(browser, url, { viewport: { width, height: 844 } });
    const hidden = await page.locator(".scroll").evaluateAll((all) => all.map((area) => area.scrollHeight - area.clientHeight));
    assert.ok(hidden.every((height) => height <= 1), `${width}: ${hidden}`);
    await page.done();
  }
});

test("lines of equal values are all visible", async () => {
  // Every second has 5 admitted and 5 denied requests, and both limits are at 100 percent.
  const lines = Array.from({ length: 60 }, (_, second) => Array.from({ length: 10 }, () => [second * 10, "a"])).flat();
  const url = report("equal", lines, ["--limit", "5 per 1s sliding-log", "--limit", "5 per 2s sliding-log"]);
  const page = await open(browser, url);
  const visible = await page.evaluate(() => ["plot-decided", "plot-most"].map((id) => {
    const place = document.getElementById(id);
    const canvas = place.querySelector("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const drawn = new Map();
    for (let at = 0; at < data.length; at += 4) {
      const name = `rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`;
      if (data[at + 3] === 255) drawn.set(name, (drawn.get(name) ?? 0) + 1);
    }
    return [...place.querySelectorAll(".legend i")].map((key) => drawn.get(getComputedStyle(key).borderTopColor) ?? 0);
  }));
  assert.equal(visible[0].length, 2);
  assert.equal(visible[1].length, 3);
  for (const pixels of visible.flat()) assert.ok(pixels > 100, `pixels of each line: ${JSON.stringify(visible)}`);
  await page.done();
});

// Regression: the first of seven lines was 13.5 pixels thick.
test("many lines of equal values are not thick", async () => {
  // All limits are at 100 percent from the sixth second on.
  const lines = Array.from({ length: 60 }, (_, second) => Array.from({ length: 10 }, () => [second, "a"])).flat();
  const limits = [1, 2, 3, 4, 5, 6].flatMap((seconds) => ["--limit", `${5 * seconds} per ${seconds}s sliding-log`]);
  const page = await open(browser, report("thick", lines, limits));
  assert.equal(await page.locator("#plot-most .legend li").count(), 7);
  const thickness = await page.locator("#plot-most canvas").evaluate((canvas) => {
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    // The most rows that are drawn one below the other in a column. The background is transparent.
    const tallest = (column) => {
      let [most, run] = [0, 0];
      for (let line = 0; line < height; line += 1) {
        run = data[(line * width + column) * 4 + 3] ? run + 1 : 0;
        most = Math.max(most, run);
      }
      return most;
    };
    // The median ignores the lines of the grid and the labels.
    return Array.from({ length: width }, (_, column) => tallest(column)).sort((one, other) => one - other)[Math.floor(width / 2)];
  });
  assert.ok(thickness >= 7 && thickness <= 9, `${thickness}`);
  await page.done();
});

test("wrong decisions have one meaning, and unlisted keys are not called none", async () => {
  // 10 at the end of a window and 10 after it: fixed-window admits 10 too many, the log would not.
  const lines = Array.from({ length: 20 }, (_, index) => [index < 10 ? 9.5 : 10.5, "busy"]).concat([[10.6, "busy"]]);
  const page = await open(browser, report("wrong", lines, ["--limit", "10 per 10s fixed-window", "--top", "0"]));
  const tile = page.locator(".tile", { hasText: "Wrong decisions" });
  assert.match(await tile.textContent(), /10.*%, above the limit or wrongly denied; 10 more admitted than sliding-log, 100 %$/);
  assert.equal(await page.locator("h3", { hasText: "decisions" }).textContent(), "Wrong decisions, and decisions unlike sliding-log");
  assert.match(await page.locator(".tile", { hasText: "Largest count" }).textContent(), /limit 10 per 10s$/);
  assert.ok((await page.textContent("#denied")).includes("not listed (--top 0)"));
  assert.deepEqual(await flaws(page), []);
  await page.done();
});

// Regression: the page of an unsorted file said that no decision was wrong, although that is not known.
test("wrong decisions of an unsorted file are not known", async () => {
  // In reverse order, with a burst that fixed-window and the log decide differently.
  const lines = Array.from({ length: 40 }, (_, index) => [(40 - index) / 2, "a"]);
  for (const limit of ["100 per 10s", "5 per 10s fixed-window"]) {
    const page = await open(browser, report("unsorted", lines, ["--limit", limit]));
    const tile = page.locator(".tile", { hasText: "Wrong decisions" });
    assert.equal(await tile.locator("p").textContent(), "not known");
    assert.equal(await tile.locator("small").textContent(), "the events are not in order of time");
    assert.match(await page.textContent("#plot-wrong"), /Which decisions were wrong is not known: the events are not in order of time\.$/);
    for (const label of ["above the limit", "wrongly denied"]) {
      assert.deepEqual(await page.locator(`#compared td[data-label="${label}"]`).allTextContents(), ["not known"]);
    }
    assert.deepEqual(await flaws(page), []);
    await page.done();
  }
});

// Regression: a step showed only the counts of keys with a request in it, and the last count was drawn until the next
// request, also after it had expired.
test("the largest count is the rolling count of all keys", async () => {
  // A key reaches its limit of 2 at 0 s, for 10 s. Another one has a request every second, and nobody from 60 s to 100 s.
  const lines = [[0, "a"], [0, "a"], ...Array.from({ length: 60 }, (_, second) => [second, "b"]), [100, "b"]];
  lines.sort(([one], [other]) => one - other);
  const page = await open(browser, report("rolling", lines, ["--limit", "2 per 10s sliding-log"]));
  const { most, width_us: width } = await page.evaluate(() => JSON.parse(document.getElementById("data").textContent).algorithms[0].timeline);
  const at = (second) => most[0][Math.floor((second * 1e6) / width)];
  assert.deepEqual([0.5, 5.5, 9.5, 59.5, 75.5, 100].map(at), [2, 2, 2, 2, 0, 1]);
  await page.done();
});

test("labels and tables are not cut on a phone", async () => {
  const url = report("phone", hostile(), ["--limit", "5 per 1s sliding-log", "--limit", "123456789 per 366d token-bucket burst 12345678901", "--suggest", "99"]);
  const page = await open(browser, url, { viewport: { width: 390, height: 844 } });
  const cut = await page.locator(".legend span, .blocks td, .tile small").evaluateAll((all) =>
    all.filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline").map((one) => one.textContent));
  assert.deepEqual(cut, []);
  const hidden = await page.locator(".scroll:has(.blocks)").evaluateAll((all) => all.map((area) => area.scrollWidth - area.clientWidth));
  assert.ok(hidden.every((width) => width <= 1), `hidden columns: ${hidden}`);
  await page.done();
});

// Regression: the last column of the decisions was cut off.
test("tables of decisions are not cut on a small screen", async () => {
  const lines = Array.from({ length: 200 }, (_, index) => [index / 10, `key-${index % 3}`]);
  const url = report("columns", lines, ["--limit", "10 per 10s", "--algorithm", "all"]);
  for (const width of [390, 1000, 1200]) {
    const page = await open(browser, url, { viewport: { width, height: 1800 } });
    const hidden = await page.locator(".scroll:has(#compared)").evaluate((area) => area.scrollWidth - area.clientWidth);
    assert.ok(hidden <= 1, `${width}: ${hidden} pixels of columns are hidden`);
    await page.done();
  }
});

test("observed policies are listed and marked", async () => {
  const config = join(home, "observed.yaml");
  writeFileSync(config, `policies:
  - { name: api, key: "{header:x-user}", limits: ["9 per 1s sliding-log"] }
  - { name: login, key: "{header:x-user}", limits: ["1 per 1m sliding-log"], mode: observe }
`);
  const trace = join(home, "observed.jsonl");
  writeFileSync(trace, `{"ts":1700000000,"http_x_user":"a"}\n`.repeat(3));
  const path = join(home, "observed.html");
  execFileSync(process.env.TIDEGATE_BIN, ["replay", trace, "--config", config, "--html", path], { stdio: ["ignore", "ignore", "inherit"] });
  for (const width of [390, 1400]) {
    const page = await open(browser, pathToFileURL(path).href, { viewport: { width, height: 900 } });
    const rows = await page.locator("#policy-limits tbody tr").evaluateAll((all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
    assert.deepEqual(rows, [
      ["api", "9 per 1s sliding-log", "enforced", "3", "0", "3 / 9"],
      ["login", "1 per 1m sliding-log", "observed", "3", "2", "1 / 1"],
    ]);
    assert.match(await page.textContent("#findings"), /The policy login is only observed; its limit 1 per 1m sliding-log would have denied 2 of 3 requests\./);
    assert.match(await page.textContent("#about"), /login: 1 per 1m sliding-log \(observed\)/);
    assert.match(await page.textContent("#plot-most"), /login: 1 per 1m sliding-log \(observed\)/);
    assert.equal(await isTooWide(page), false);
    assert.deepEqual(await flaws(page), []);
    await page.done();
  }
});

test("one denied request is not called requests", async () => {
  const page = await open(browser, report("single", [[0, "a"], [0, "a"]], ["--limit", "1 per 1s"]));
  assert.match(await page.locator(".tile", { hasText: "Denied" }).first().textContent(), /1 request$/);
  await page.done();
});

test("a single request and a report without denials are shown", async () => {
  const page = await open(browser, report("one", [[0, "a"]], ["--limit", "1 per 1s"]), { viewport: { width: 390, height: 844 } });
  assert.equal(await page.textContent("#lead"), "sliding-window would have admitted the only request.");
  assert.match(await page.textContent("#plot-wrong"), /^None: /);
  assert.deepEqual(await flaws(page), []);
  await page.done();
});
