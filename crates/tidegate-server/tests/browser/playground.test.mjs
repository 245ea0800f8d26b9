// The playground in a browser: buttons, experiments, links, keyboard.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";
import { browse, open, serve } from "./harness.mjs";

let server;
let browser;
before(async () => [server, browser] = await Promise.all([serve(), browse()]));
after(async () => Promise.all([browser?.close(), server?.stop()]));

const playground = (query = "", options) => open(browser, `${server.http}/playground${query}`, options);
const text = (page, selector) => page.locator(selector).innerText();
const lane = (algorithm) => `.lane[data-algorithm="${algorithm}"]`;
const tally = async (page, algorithm) => Promise.all(
  ["admitted", "denied"].map(async (name) => Number(await text(page, `${lane(algorithm)} .${name}`))));
/** Waits until an element contains this text. */
const shows = (page, selector, wanted) => page.locator(selector).filter({ hasText: wanted }).first().waitFor();
/** Pauses, so that numbers can be compared. */
const still = async (page) => {
  if (await text(page, "#pause") === "Pause") await page.click("#pause");
};

test("it opens at 5 per 15 s, and a burst of 8 admits 5", async () => {
  const page = await playground();
  assert.deepEqual(await Promise.all(["#limit", "#window", "#cost"].map((id) => page.inputValue(id))), ["5", "15", "1"]);
  await still(page);
  await page.click("#burst");
  await shows(page, "#status", "8 sent: 5 admitted, 3 denied.");
  for (const algorithm of ["fixed-window", "sliding-counter", "sliding-window"]) {
    assert.deepEqual(await tally(page, algorithm), [5, 3], algorithm);
  }
  assert.match(await text(page, `${lane("sliding-counter")} .formula dd:first-of-type`), /^5\.000 = 0 × \d\.\d{3} \+ 5$/);
  assert.equal(await text(page, `${lane("sliding-counter")} .remaining dd`), "0 of 5");
  // Admitted and denied differ in shape: five dots, three crosses of two strokes.
  const strokes = (name) => page.locator(`${lane("fixed-window")} path.${name}`).first()
    .evaluate((path) => path.getAttribute("d").match(/M/g).length);
  assert.deepEqual([await strokes("dots"), await strokes("crosses")], [5, 3]);
  await page.done();
});

test("time passes: the box slides, the wait gets shorter, a new window begins", async () => {
  const page = await playground();
  await page.click("#burst");
  await shows(page, "#status", "8 sent");
  const wait = async () => Number.parseFloat(await text(page, `${lane("sliding-counter")} .retry dd`));
  const place = () => page.locator(`${lane("sliding-counter")} .box`).evaluate((box) => box.getBoundingClientRect().x);
  const [firstWait, firstPlace] = [await wait(), await place()];
  await page.waitForFunction((past) => Number.parseFloat(document.querySelector(".lane .retry dd").textContent) < past, firstWait - 0.2);
  assert.ok(await wait() < firstWait && await place() > firstPlace);
  await page.selectOption("#speed", "16");
  await page.locator("#status.flash").filter({ hasText: "A new window begins: curr is now prev." }).waitFor();
  await shows(page, `${lane("sliding-counter")} .formula dd:first-of-type`, /[=≈] 5 × /);
  await page.done();
});

const EXPERIMENTS = [
  {
    id: "burst", guesses: ["5", "5"], found: ["engine: 5 ✓", "engine: 5 ✓"], verdict: "As you predicted.",
    tallies: { "sliding-counter": [5, 3], "sliding-window": [5, 3] },
  },
  {
    id: "boundary", guesses: ["5", "6", ""], found: ["engine: 10, not 5", "engine: 6 ✓", "engine: 5"], verdict: "Not quite as you predicted.",
    tallies: { "fixed-window": [10, 0], "sliding-counter": [6, 4], "sliding-window": [5, 5] },
  },
  {
    id: "rollover", guesses: ["3", "0", "3"], found: ["engine: 3 ✓", "engine: 0 ✓", "engine: 3 ✓"], verdict: "As you predicted.",
    tallies: { "sliding-counter": [3, 0], "sliding-window": [3, 0] }, formula: "2.700 = 3 × 0.900 + 0", oldest: "5.000 s, expires at 20.000 s",
  },
  {
    id: "worst", guesses: ["", ""], found: ["engine: 10", "engine: 5"], verdict: "These are the results of the engine.",
    tallies: { "sliding-counter": [10, 0], "sliding-window": [5, 5] },
    events: "14900000*5.15000001.18000001.21000001.24000001.27000001",
  },
  {
    id: "even", guesses: ["3", "2"], found: ["engine: 3 ✓", "engine: 2 ✓"], verdict: "As you predicted.",
    tallies: { "sliding-window": [60, 0], "sliding-log": [60, 0] },
    oldest: "2 = 2 − 0: the limit's pace brings 2 units in the 0.500 s that left the window",
    events: Array.from({ length: 60 }, (_, index) => index * 250_000).join("."),
  },
  {
    id: "beat", guesses: ["120", "60"], found: ["engine: 120 ✓", "engine: 60 ✓"], verdict: "As you predicted.",
    tallies: { "sliding-counter": [120, 0], "sliding-window": [60, 60] },
    most: { "sliding-counter": "120, over the limit", "sliding-window": "60" },
    // The pace of the limit brings 3 units in the first 0.9 s of the cell, and the burst came after them.
    oldest: "0 = 3 − 3: the limit's pace brings 3 units in the 0.750 s that left the window",
    events: ["14900000*60", ...Array.from({ length: 60 }, (_, index) => 15_000_001 + index * 250_000)].join("."),
  },
];

for (const motion of ["no-preference", "reduce"]) {
  for (const { id, guesses, found, verdict, tallies, most = {}, formula, oldest, events } of EXPERIMENTS) {
    test(`experiment ${id}, motion ${motion}`, async () => {
      const page = await playground("", { reducedMotion: motion });
      for (const [index, guess] of guesses.entries()) await page.fill(`#guess-${id}-${index}`, guess);
      await page.click(`#experiment-${id} button`);
      await page.locator(`#experiment-${id} .why`).waitFor({ state: "visible" });
      assert.deepEqual(await page.locator(`#experiment-${id} .found`).allInnerTexts(), found);
      assert.equal(await text(page, `#experiment-${id} .verdict`), verdict);
      assert.ok((await text(page, "#result")).includes(verdict));
      for (const [algorithm, counts] of Object.entries(tallies)) assert.deepEqual(await tally(page, algorithm), counts, algorithm);
      for (const [algorithm, shown] of Object.entries(most)) assert.equal(await text(page, `${lane(algorithm)} .most dd`), shown, algorithm);
      if (events) {
        // The client retried at the exact microsecond.
        await page.click("#link");
        await shows(page, "#status", /link to these|now holds these/);
        assert.equal(new URL(page.url()).searchParams.get("events"), events);
      }
      if (formula) assert.equal(await text(page, `${lane("sliding-counter")} .formula dd:first-of-type`), formula);
      if (oldest) assert.equal(await text(page, `${lane("sliding-window")} .oldest dd`), oldest);
      assert.equal(await text(page, "#pause"), "Play", "the playground is paused at the end");
      await page.done();
    });
  }
}

test("every experiment of the page is tested, and has a lane of sliding-window", async () => {
  const page = await playground();
  const ids = await page.locator("#cards form").evaluateAll((forms) => forms.map((form) => form.id.replace("experiment-", "")));
  assert.deepEqual(ids, EXPERIMENTS.map(({ id }) => id));
  for (const { id, tallies } of EXPERIMENTS) assert.ok(tallies["sliding-window"], id);
  await page.done();
});

test("an interrupted experiment says so, and can run again", async () => {
  const page = await playground();
  await page.click("#experiment-worst button");
  await page.click("#reset");
  await shows(page, "#experiment-worst .verdict", "Interrupted: run it again.");
  await page.locator("#experiment-worst button:not([aria-disabled=true])").waitFor();
  await page.done();
});

test("an experiment that is run by the keyboard keeps the focus, and is not started twice", async () => {
  const page = await playground();
  const isFocused = () => page.evaluate(() => document.activeElement === document.querySelector("#experiment-worst button"));
  await page.focus("#experiment-worst button");
  await page.keyboard.press("Enter");
  await page.locator("#experiment-worst button[aria-disabled=true]").waitFor();
  assert.ok(await isFocused(), "while it runs");
  await page.keyboard.press("Enter");
  await page.locator("#experiment-worst .why").waitFor({ state: "visible" });
  assert.equal(await text(page, "#experiment-worst .verdict"), "These are the results of the engine.");
  assert.ok(await isFocused(), "at its end");
  await page.done();
});

test("the boundary attack exceeds fixed-window and not sliding-window", async () => {
  const page = await playground("?algorithms=fixed-window,sliding-counter,sliding-window,sliding-log,token-bucket");
  await page.click("#attack");
  await page.waitForFunction(() => document.querySelector(".lane .admitted").textContent === "10");
  const rows = { "fixed-window": [10, 0], "sliding-counter": [6, 4], "sliding-window": [5, 5], "sliding-log": [5, 5], "token-bucket": [5, 5] };
  for (const [algorithm, counts] of Object.entries(rows)) assert.deepEqual(await tally(page, algorithm), counts, algorithm);
  assert.equal(await text(page, `${lane("fixed-window")} .most dd`), "10, over the limit");
  assert.equal(await text(page, `${lane("sliding-window")} .most dd`), "5");
  await page.done();
});

/** Four requests in each of 15 seconds: evenly what a limit of 60 per 15 s allows. */
const EVEN = Array.from({ length: 60 }, (_, index) => index * 250_000).join(".");
/** Returns what the lane of sliding-window shows at time `at`. */
const cellsAt = async ({ limit, events, at }) => {
  const page = await playground(`?limit=${limit}&window=15s&algorithms=sliding-window&at=${at}&events=${events}`);
  const own = lane("sliding-window");
  await page.waitForFunction(() => document.querySelector(".lane .admitted").textContent !== "0");
  const marks = (name) => page.locator(`${own} .strip path.${name}`).evaluate((path) => path.getAttribute("d").match(/M/g)?.length ?? 0);
  const shown = {
    sum: await text(page, `${own} .formula dd:first-of-type`), oldest: await text(page, `${own} .oldest dd`),
    labels: await page.locator(`${own} .figures dt`).allInnerTexts(),
    described: await page.locator(`${own} svg`).getAttribute("aria-label"),
    counts: await marks("counts"), expired: await marks("expired"), lag: await marks("lag"), hits: await marks("hits"),
    dots: await page.locator(`${own} path.dots:not(.heavy)`).evaluate((path) => {
      const places = [...path.getAttribute("d").matchAll(/M([\d.]+) /g)].map(([, x]) => Number(x) / path.ownerSVGElement.clientWidth);
      const pile = [...path.ownerSVGElement.querySelectorAll(".pile")].map((one) => one.textContent);
      return { first: Math.min(...places).toFixed(3), last: Math.max(...places).toFixed(3), pile };
    }),
    texts: await page.locator(`${own} .strip text`).allTextContents(),
    legend: await page.locator(".legend [data-of=cells]:visible").count(),
  };
  await page.done();
  return shown;
};

test("an even cell expires at the limit's pace", async () => {
  const half = await cellsAt({ limit: 60, events: EVEN, at: 15_500_000 });
  assert.equal(half.sum, "58 = 60 − 2");
  assert.equal(half.oldest, "2 = 2 − 0: the limit's pace brings 2 units in the 0.500 s that left the window");
  assert.deepEqual([half.labels[0], half.labels.at(-1)], ["used = units − expired, over all cells", "oldest cell: expired = paced − lag"]);
  assert.deepEqual([half.counts, half.expired, half.lag, half.hits], [15, 1, 0, 15]);
  assert.deepEqual(half.texts, Array(15).fill("4"));
  assert.equal(half.legend, 4);
  assert.ok(half.described.startsWith("Requests over two windows. Cells: from 0.000 s: 4 units, 2 expired, lag 0; from 1.000 s: 4 units, 0 expired, lag 0;"), half.described);
  // The last hit, at 0.75 s, is kept in fifteenths of the cell: 0.800004 s.
  const before = await cellsAt({ limit: 60, events: EVEN, at: 15_800_003 });
  assert.deepEqual([before.sum, before.oldest], ["57 = 60 − 3", "3 = 3 − 0: the limit's pace brings 3 units in the 0.800 s that left the window"]);
  const after = await cellsAt({ limit: 60, events: EVEN, at: 15_800_004 });
  assert.deepEqual([after.sum, after.oldest], ["56 = 56 − 0", "4 units, lag 0; leaves the window from 16.000 s"]);
  assert.deepEqual([after.counts, after.expired], [14, 0]);
});

test("a late burst has a lag, and expires as a whole", async () => {
  const burst = { limit: 60, events: "14900000*60" };
  const inside = await cellsAt({ ...burst, at: 20_000_000 });
  assert.deepEqual([inside.sum, inside.oldest], ["60 = 60 − 0", "60 units, lag 3; leaves the window from 29.000 s"]);
  assert.deepEqual([inside.counts, inside.expired, inside.lag, inside.hits], [1, 0, 1, 1]);
  assert.deepEqual(inside.texts, ["60", "lag 3"]);
  // All dots are at the same time, with their number above them.
  assert.deepEqual(inside.dots, { first: "0.497", last: "0.497", pile: ["×60"] });
  const early = await cellsAt({ ...burst, at: 29_300_000 });
  assert.deepEqual([early.sum, early.oldest], ["60 = 60 − 0", "0 = max(0, 1 − 3): the limit's pace brings 1 unit in the 0.300 s that left the window"]);
  const late = await cellsAt({ ...burst, at: 29_933_337 });
  assert.deepEqual([late.sum, late.oldest], ["60 = 60 − 0", "0 = 3 − 3: the limit's pace brings 3 units in the 0.933 s that left the window"]);
  const over = await cellsAt({ ...burst, at: 29_933_338 });
  assert.deepEqual([over.sum, over.oldest], ["0 = 0 − 0", "no cell holds units"]);
  assert.deepEqual([over.counts, over.expired, over.lag, over.hits], [0, 0, 0, 0]);
  assert.ok(over.described.endsWith("No cell holds units."));
});

test("a cell that fell behind the pace releases that much later", async () => {
  const { sum, oldest, counts, expired } = await cellsAt({ limit: 60, events: "0.900000", at: 15_900_000 });
  // The second request came when the pace had brought 3 units and one had come: a lag of 2.
  assert.deepEqual([sum, oldest], ["1 = 2 − 1", "1 = 3 − 2: the limit's pace brings 3 units in the 0.900 s that left the window"]);
  assert.deepEqual([counts, expired], [1, 1]);
});

test("a limit up to 20 is shown as a log of times", async () => {
  const log = await cellsAt({ limit: 20, events: "1000000*3.2000000", at: 5_000_000 });
  assert.deepEqual([log.sum, log.oldest], ["4", "1.000 s, expires at 16.000 s"]);
  assert.deepEqual([log.labels[0], log.labels.at(-1)], ["used = admitted in the last window", "oldest time"]);
  assert.deepEqual([log.counts, log.expired, log.lag, log.hits], [0, 0, 0, 2]);
  assert.deepEqual(log.texts, ["3", "1"]);
  assert.equal(log.legend, 0);
  assert.equal(log.described, "Requests over two windows. Times: 1.000 s: 3 units; 2.000 s: 1 unit.");
  const cells = await cellsAt({ limit: 21, events: "1000000*3.2000000", at: 5_000_000 });
  assert.deepEqual([cells.sum, cells.oldest], ["4 = 4 − 0", "3 units, lag 0; leaves the window from 16.000 s"]);
});

const ALL = "algorithms=fixed-window,sliding-counter,sliding-window,sliding-log,token-bucket";

/** The rules of all lanes, in their order, for a limit and a cost. */
const RULES = [
  { limit: 5, cost: 1, rules: [
    "admitted while the count is below 5", "admitted while the estimate is below 5", "admitted while used is below 5",
    "admitted while the count is below 5", "admitted while the bucket holds at least 1 token",
  ] },
  { limit: 5, cost: 3, rules: [
    "a cost of 3 is admitted while the count is below 5 − 3 + 1 = 3", "a cost of 3 is admitted while the estimate is below 5 − 3 + 1 = 3",
    "a cost of 3 is admitted while used is below 5 − 3 + 1 = 3", "a cost of 3 is admitted while the count is below 5 − 3 + 1 = 3",
    "a cost of 3 is admitted while the bucket holds at least 3 tokens",
  ] },
  { limit: 5, cost: 6, rules: Array(5).fill("never admitted: the cost 6 is above the limit 5") },
  { limit: 0, cost: 1, rules: Array(5).fill("never admitted: the cost 1 is above the limit 0") },
];

for (const { limit, cost, rules } of RULES) {
  test(`each lane states its rule, limit ${limit}, cost ${cost}`, async () => {
    const page = await playground(`?${ALL}&limit=${limit}&cost=${cost}`);
    assert.deepEqual(await page.locator(".lane .rule").allInnerTexts(), rules);
    // The engine agrees: the rule is compared with the number above it, after each request.
    await still(page);
    const admits = async () => Promise.all((await page.locator(".lane").all()).map(async (one) => {
      const [number, shown] = [await one.locator(".formula dd:first-of-type").innerText(), await one.locator(".rule").innerText()];
      const bound = Number(/(\d+)( tokens?)?$/.exec(shown)[1]);
      if (shown.startsWith("never")) return false;
      return shown.includes("below") ? Number.parseFloat(number) < bound : Number.parseFloat(number) >= bound;
    }));
    const passes = async () => (await page.locator(".lane .retry dd").allInnerTexts()).map((wait) => wait === "now");
    for (let sent = 0; sent <= 5; sent += 1) {
      if (sent) await page.click("#send");
      await page.waitForFunction((total) => [...document.querySelectorAll(".lane")].every((one) =>
        Number(one.querySelector(".admitted").textContent) + Number(one.querySelector(".denied").textContent) === total
        && one.querySelector(".retry dd").textContent), sent);
      assert.deepEqual(await admits(), await passes(), `after ${sent}`);
    }
    await page.done();
  });
}

test("only sliding lanes have the sliding box, and only aligned windows are named", async () => {
  const page = await playground(`?${ALL}`);
  const lanesWith = (selector) => page.locator(".lane").filter({ has: page.locator(selector) })
    .evaluateAll((lanes) => lanes.map((one) => one.dataset.algorithm));
  assert.deepEqual(await lanesWith(".box"), ["sliding-counter", "sliding-window", "sliding-log"]);
  assert.deepEqual(await lanesWith(".now-line"), ["fixed-window", "token-bucket"]);
  await page.locator(".lane text.name").first().waitFor();
  assert.deepEqual(await lanesWith("text.name"), ["fixed-window", "sliding-counter"]);
  assert.deepEqual(await lanesWith(".overlap"), ["sliding-counter"]);
  const legend = () => page.locator(".legend li:visible").evaluateAll((items) => items.map((item) => item.dataset.of ?? ""));
  assert.deepEqual(await legend(), ["", "", "box", "line", "overlap", "times"]);
  for (const algorithm of ["sliding-counter", "sliding-window", "sliding-log"]) await page.uncheck(`#algorithms input[value=${algorithm}]`);
  assert.deepEqual(await legend(), ["", "", "line"]);
  await page.done();
});

/** What the lane of sliding-counter prints at a time. `≈` marks a result that the printed digits do not give exactly. */
const WEIGHTS = [
  { width: 1280, at: 18_000_000, counts: ["prev = 5, weight = 12.000 s in the box ÷ 15 s = 0.800", "curr = 1"], formula: "5.000 = 5 × 0.800 + 1", weight: "0.800" },
  { width: 600, at: 18_000_000, counts: ["prev 5, weight 0.800", "curr 1"], formula: "5.000 = 5 × 0.800 + 1", weight: "0.800" },
  { width: 390, at: 18_000_000, counts: ["prev 5, weight 0.800", "curr 1"], formula: "5.000 = 5 × 0.800 + 1", weight: "0.800" },
  { width: 1280, at: 16_000_000, counts: ["prev = 5, weight = 14.000 s in the box ÷ 15 s ≈ 0.933", "curr = 0"], formula: "4.667 ≈ 5 × 0.933 + 0", weight: "0.933" },
  { width: 1280, at: 29_750_000, counts: ["prev = 5, weight = 0.250 s in the box ÷ 15 s ≈ 0.017", "curr = 1"], formula: "1.083 ≈ 5 × 0.017 + 1", weight: "0.017" },
];

for (const { width, at, counts, formula, weight } of WEIGHTS) {
  test(`the weight is the overlap of the box and the previous window, ${width} px, ${at} µs`, async () => {
    const events = at > 16_000_000 ? "5000000*5.16000001" : "5000000*5";
    const page = await playground(`?algorithms=sliding-counter&at=${at}&events=${events}`, { viewport: { width, height: 900 } });
    await shows(page, `${lane("sliding-counter")} .formula dd:first-of-type`, formula);
    const overlap = await page.locator(".overlap").evaluate((part) => {
      const [window, box] = [part.parentElement.getBoundingClientRect(), part.getBoundingClientRect()];
      return (window.right - box.left) / window.width;
    });
    assert.equal(overlap.toFixed(3), weight);
    const labels = page.locator(".strip text");
    assert.deepEqual(await labels.allTextContents(), counts);
    const isInside = (label) => label.getBoundingClientRect().left >= label.ownerSVGElement.getBoundingClientRect().left;
    assert.ok(await labels.first().evaluate(isInside), "the label is not cut off");
    // The dashed edge crossed the label.
    const edges = await page.locator(`${lane("sliding-counter")} .box, .overlap`).evaluateAll((boxes) => boxes.map((box) => box.getBoundingClientRect().bottom));
    const top = await labels.first().evaluate((label) => label.getBoundingClientRect().top);
    assert.ok(edges.length === 2 && edges.every((edge) => edge <= top), `edges at ${edges} cross the label at ${top}`);
    await page.done();
  });
}

test("on a phone all controls and the first drawing are on one screen", async () => {
  const page = await playground("", { viewport: { width: 390, height: 844 } });
  await page.locator(".lane .track").first().waitFor();
  const bottom = (selector) => page.locator(selector).evaluateAll((all) => Math.max(...all.map((one) => one.getBoundingClientRect().bottom)));
  const lanesTop = await page.locator("#lanes").evaluate((lanes) => lanes.getBoundingClientRect().top);
  assert.ok(await bottom("#settings input, .actions button, .actions select") <= lanesTop, "the controls are above the lanes");
  assert.ok(await page.locator(".lane .track").first().evaluate((track) => track.getBoundingClientRect().bottom) <= 844, "the first drawing is visible");
  await page.done();
});

test("old links with sliding-buckets open, and the page says what it leaves out", async () => {
  const page = await playground("?limit=5&window=15s&buckets=10&cost=1&algorithms=sliding-counter,sliding-buckets&speed=1");
  assert.deepEqual(await page.locator("#notes li").allInnerTexts(), [
    "“buckets” is not a setting: it is left out.",
    "“sliding-buckets” is not an algorithm: use fixed-window, sliding-counter, sliding-window, sliding-log, token-bucket.",
  ]);
  await still(page);
  await page.click("#burst");
  await shows(page, "#status", "8 sent: 5 admitted, 3 denied.");
  assert.equal(await page.locator(".lane").count(), 1);
  await page.done();
});

test("a step is exact, and so is the wait", async () => {
  // A link with requests opens paused, so the clock is known.
  const page = await playground("?algorithms=sliding-log,sliding-counter&at=1000000&events=1000000*8");
  await shows(page, `${lane("sliding-log")} .retry dd`, /^15\.00 s$/);
  assert.equal(await text(page, "#clock"), "1.0 s");
  for (let step = 0; step < 4; step += 1) await page.click("#step");
  await shows(page, "#clock", /^5\.0 s$/);
  await shows(page, `${lane("sliding-log")} .retry dd`, /^11\.00 s$/);
  await page.done();
});

test("steady requests are sent until they are stopped", async () => {
  const page = await playground("?limit=5&window=2s");
  await page.selectOption("#rate", "20");
  await page.click("#steady");
  await shows(page, "#status", "Sending steadily, 20 per s.");
  await page.waitForFunction(() => Number(document.querySelector(".lane .denied").textContent) > 10);
  await page.click("#steady");
  assert.equal(await page.getAttribute("#steady", "aria-pressed"), "false");
  await shows(page, "#status", "Steady requests stopped.");
  await page.done();
});

test("a changed limit decides the same requests again, and restarts the status line", async () => {
  const page = await playground();
  await still(page);
  await page.click("#burst");
  await shows(page, "#status", "8 sent");
  await page.fill("#limit", "7");
  await page.locator("#limit").blur();
  await page.waitForFunction(() => document.querySelector(".lane .admitted").textContent === "7");
  // The status line described the old limit.
  await shows(page, "#status", "7 per 15 s, the same 8 requests: 7 admitted, 1 denied.");
  await page.check("#algorithms input[value=token-bucket]");
  await shows(page, `${lane("token-bucket")} .admitted`, "7");
  await page.fill("#cost", "8");
  await page.locator("#cost").blur();
  await shows(page, `${lane("sliding-counter")} .retry dd`, "never");
  await page.fill("#limit", "100000");
  await page.locator("#limit").blur();
  await shows(page, "#notes", "limit 100000 is out of range (0 to 200): 200 is used.");
  assert.equal(await page.inputValue("#limit"), "200");
  await page.fill("#limit", "");
  await page.locator("#limit").blur();
  await shows(page, "#notes", "limit is empty: 200 is used.");
  await page.done();
});

test("an invalid address is clamped, and its mistakes are shown as text", async () => {
  const hostile = "<img src=x onerror=alert(1)>";
  const query = new URLSearchParams({
    limit: "99999999999999999999", window: "-3s", cost: hostile, speed: "Infinity",
    algorithms: `sliding-log,${hostile}`, events: `0*9999.x.${hostile}.99999999999999`, at: "nan", [hostile]: "1",
  });
  const page = await playground(`?${query}`);
  const notes = await page.locator("#notes li").allInnerTexts();
  assert.deepEqual(notes, [
    "limit 99999999999999999999 is out of range (0 to 200): 200 is used.",
    "window -3 is out of range (1 to 600): 1 is used.",
    "cost “<img src=x onerror=alert…” is not a whole number: 1 is used.",
    "speed “Infinity” is not one of 0.25, 0.5, 1, 2, 4, 8, 16: 1 is used.",
    "“<img src=x onerror=alert” is not an algorithm: use fixed-window, sliding-counter, sliding-window, sliding-log, token-bucket.",
    "A request “x” of the link is invalid: it is left out.",
    "A request “<img src=x onerror=alert” of the link is invalid: it is left out.",
    "A request “99999999999999” of the link is invalid: it is left out.",
    "The link has 9999 requests: the first 1000 are used.",
    "The time “nan” of the link is not one from 0 to 60000000000 µs: 0 is used.",
    "“<img src=x onerror=alert” is not a setting: it is left out.",
  ]);
  assert.equal(await page.locator("img").count(), 1, "only the logo");
  assert.equal(await page.title(), "tidegate playground");
  await shows(page, `${lane("sliding-log")} .denied`, "800");
  // No more can be added.
  await page.click("#send");
  await shows(page, "#status", "1000 requests is the maximum: press Reset to start again.");
  await page.done();
});

test("a link with many mistakes shows a dozen of them", async () => {
  const page = await playground(`?events=${"0*9999.".repeat(500)}${"x.".repeat(300)}5*0`);
  const notes = await page.locator("#notes li").allInnerTexts();
  assert.equal(notes.length, 13);
  assert.equal(notes[12], "And 290 more like these.");
  await page.done();
});

test("a link holds settings and requests", async () => {
  const page = await playground("?limit=3&window=10s&algorithms=sliding-counter,sliding-log&cost=2");
  await still(page);
  await page.click("#burst");
  await shows(page, "#status", "8 sent");
  await page.click("#step");
  await page.click("#send");
  await shows(page, "#status", "1 sent");
  await page.click("#link");
  await shows(page, "#status", /link to these|now holds these/);
  const [url, clock] = [page.url(), await text(page, "#clock")];
  const counts = await tally(page, "sliding-log");
  await page.done();
  const copy = await open(browser, url);
  await shows(copy, "#status", "9 requests of the link");
  await copy.waitForFunction(() => document.querySelector(".lane .denied").textContent !== "0");
  assert.deepEqual(await tally(copy, "sliding-log"), counts);
  assert.equal(await text(copy, "#clock"), clock);
  await copy.done();
});

test("the keyboard is enough", async () => {
  const page = await playground();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
  await page.keyboard.press("Enter");
  for (let presses = 0; presses < 10 && await page.evaluate(() => document.activeElement.id) !== "burst"; presses += 1) await page.keyboard.press("Tab");
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(outline, "solid", "focus can be seen");
  await page.keyboard.press("Space");
  await shows(page, "#status", "8 sent: 5 admitted, 3 denied.");
  await page.done();
});

test("the quiz shows the right answers on submit", async () => {
  const page = await playground();
  assert.equal(await page.locator("#quiz .why:visible").count(), 0);
  for (const [name, value] of [["q1", "c"], ["q2", "b"], ["q3", "a"], ["q4", "c"], ["q5", "a"]]) await page.check(`#quiz input[name=${name}][value=${value}]`);
  await page.click("#quiz button");
  assert.equal(await text(page, "#score"), "4 of 5 right.");
  assert.equal(await page.locator("#quiz .why:visible").count(), 5);
  assert.equal(await page.locator("#quiz label.wrong").count(), 1);
  assert.match(await page.locator("#quiz fieldset").nth(3).locator("label.right").innerText(), /fell behind the limit's pace/);
  await page.done();
});

test("a server with tokens gets a token form", async () => {
  const guarded = await serve({ env: { TIDEGATE_TOKENS: "s3cret" } });
  try {
    const page = await open(browser, `${guarded.http}/playground`);
    page.expects(/401/);
    await page.fill("#token", "wrong");
    await page.click("#login button");
    await page.locator("#login").waitFor({ state: "visible" });
    await page.fill("#token", "s3cret");
    await page.click("#login button");
    await page.click("#burst");
    await shows(page, "#status", "8 sent: 5 admitted, 3 denied.");
    await page.done();
  } finally {
    await guarded.stop();
  }
});

test("a server that stops is reported, and retried slowly", async () => {
  const mine = await serve();
  const page = await open(browser, `${mine.http}/playground`);
  page.expects(/ERR_/);
  await page.click("#burst");
  await shows(page, "#status", "8 sent");
  let asked = 0;
  page.on("request", () => { asked += 1; });
  await mine.stop();
  await page.click("#send");
  await shows(page, "#status", "The server does not answer; trying again.");
  asked = 0;
  await page.waitForTimeout(2000);
  assert.ok(asked <= 4, `asked ${asked} times`);
  await page.click("#experiment-burst button");
  await shows(page, "#experiment-burst .verdict", "The engine did not answer: run it again.");
  await page.done();
});

test("requests can be read as a table", async () => {
  const page = await playground();
  await page.click("#burst");
  await shows(page, "#status", "8 sent");
  await page.click("#table summary");
  await page.locator("#table-rows tr").first().waitFor();
  assert.equal(await page.locator("#table-rows tr").count(), 8);
  assert.equal(await page.locator("#table-rows td", { hasText: /^denied$/ }).count(), 9);
  await page.done();
});

test("all files together are small", async () => {
  const paths = ["", "/playground.css", "/playground.js", "/algorithms.js", "/settings.js", "/engine.js", "/timeline.js", "/cells.js", "/lessons.js", "/icon.svg"];
  const sizes = await Promise.all(paths.map(async (path) =>
    gzipSync(Buffer.from(await (await fetch(`${server.http}/playground${path}`)).arrayBuffer())).length));
  assert.ok(sizes.reduce((all, one) => all + one, 0) <= 300 * 1024, `${sizes}`);
});
