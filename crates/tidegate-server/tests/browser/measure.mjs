// Measures the pages: their size, the time to the first paint, and whether the playground keeps up
// with 500 dots. The numbers depend on the machine, so they are printed and not asserted.

import { gzipSync } from "node:zlib";
import { browse, open, serve } from "./harness.mjs";

const ROUNDS = 7;
const SECONDS = 5;

const median = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

async function size(base, page) {
  const html = await (await fetch(base + page)).text();
  const seen = new Map([[page, html]]);
  const queue = [...html.matchAll(/(?:src|href)="([a-z]+\/[^"]+)"/g)].map(([, path]) => `/${path}`);
  while (queue.length) {
    const path = queue.pop();
    if (seen.has(path)) continue;
    const text = await (await fetch(base + path)).text();
    seen.set(path, text);
    for (const [, name] of text.matchAll(/from "\.\/([a-z]+\.js)"/g)) queue.push(`${page}/${name}`);
  }
  const total = (count) => [...seen.values()].reduce((all, text) => all + count(text), 0);
  return { files: seen.size, bytes: total((text) => Buffer.byteLength(text)), gzipped: total((text) => gzipSync(text).length) };
}

async function firstPaint(browser, url) {
  const times = [];
  for (let round = 0; round <= ROUNDS; round += 1) {
    const page = await open(browser, url);
    await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
    times.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
    await page.done();
  }
  // The first load warms up the browser.
  return median(times.slice(1));
}

/** Measures frames while 500 dots are shown and time passes. */
async function frames(browser, base, algorithms) {
  const events = Array.from({ length: 500 }, (_, index) => index * 228_000).join(".");
  const query = `limit=100&window=60s&algorithms=${algorithms.join(",")}&at=114000000&events=${events}`;
  const page = await open(browser, `${base}/playground?${query}`);
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  await page.waitForFunction(() => document.querySelector(".lane .admitted").textContent !== "0");
  const busy = async () => {
    const { metrics } = await session.send("Performance.getMetrics");
    return metrics.find(({ name }) => name === "TaskDuration").value;
  };
  await page.click("#pause");
  const before = await busy();
  const times = await page.evaluate((seconds) => new Promise((resolve) => {
    const seen = [];
    const frame = (time) => {
      seen.push(time);
      if (time - seen[0] < seconds * 1000) requestAnimationFrame(frame);
      else resolve(seen);
    };
    requestAnimationFrame(frame);
  }), SECONDS);
  const spent = (await busy()) - before;
  const gaps = times.slice(1).map((time, index) => time - times[index]);
  await page.done();
  return {
    lanes: algorithms.length, perSecond: 1000 * gaps.length / (times.at(-1) - times[0]),
    slow: gaps.filter((gap) => gap > 25).length, longest: Math.max(...gaps), busyMs: (1000 * spent) / gaps.length,
  };
}

const [server, browser] = await Promise.all([serve(), browse()]);
try {
  console.log(`${browser.browserType().name()} ${browser.version()}`);
  for (const [base, page] of [[server.http, "/playground"], [server.admin, "/dashboard"]]) {
    const { files, bytes, gzipped } = await size(base, page);
    const paint = await firstPaint(browser, base + page);
    console.log(`${page}: ${files} files, ${(bytes / 1024).toFixed(1)} KiB, ${(gzipped / 1024).toFixed(1)} KiB gzipped; first paint after ${paint.toFixed(0)} ms (median of ${ROUNDS})`);
  }
  for (const algorithms of [["sliding-counter"], ["fixed-window", "sliding-counter", "sliding-window", "sliding-log", "token-bucket"]]) {
    const { lanes, perSecond, slow, longest, busyMs } = await frames(browser, server.http, algorithms);
    console.log(`500 dots in ${lanes} lane${lanes > 1 ? "s" : ""}: ${perSecond.toFixed(1)} frames/s, ${slow} longer than 25 ms in ${SECONDS} s (the longest ${longest.toFixed(0)} ms), ${busyMs.toFixed(2)} ms of work each`);
  }
} finally {
  await Promise.all([browser.close(), server.stop()]);
}
