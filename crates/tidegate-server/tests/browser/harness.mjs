// A server, a browser, and a page whose console messages and requests are recorded.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const BINARY = process.env.TIDEGATE_BIN;
const BROWSER = process.env.TIDEGATE_BROWSER ?? "/usr/bin/chromium";
const PATIENCE_MS = 30_000;

/** Starts a server. Returns its addresses, and a function that stops it. */
export async function serve({ config, env = {}, admin = "127.0.0.1:0" } = {}) {
  assert.ok(BINARY, "TIDEGATE_BIN names the program to be tested");
  const home = mkdtempSync(join(tmpdir(), "tidegate-pages-"));
  const args = ["serve", "--http", "127.0.0.1:0", "--admin", admin, "--grpc", "off", "--resp", "off"];
  const file = join(home, "tidegate.yaml");
  if (config) {
    writeFileSync(file, config);
    args.push("--config", file);
  }
  const child = spawn(BINARY, args, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  let printed = "";
  const address = await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`the server did not start: ${printed}`)), PATIENCE_MS);
    const look = (bytes) => {
      printed += bytes;
      const [http, admin] = ["http", "admin"].map((front) => new RegExp(`^ *${front} +(http://\\S+)`, "m").exec(printed)?.[1]);
      if (http && admin) {
        clearTimeout(late);
        resolve({ http, admin });
      }
    };
    child.stdout.on("data", look);
    child.stderr.on("data", look);
    ended.then((code) => reject(new Error(`the server ended with ${code}: ${printed}`)));
  });
  return {
    ...address,
    write: (text) => writeFileSync(file, text),
    async stop() {
      child.kill("SIGTERM");
      await ended;
      rmSync(home, { recursive: true, force: true });
    },
  };
}

/** Chromium. As root it runs without its sandbox, because it refuses to start otherwise. */
export function browse() {
  const args = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
  return chromium.launch({ executablePath: BROWSER, args, timeout: PATIENCE_MS });
}

/** Opens a new page and records its errors. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const complaints = [];
  const expected = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => complaints.push(`script: ${error.message}`));
  page.on("request", (request) => {
    const asked = new URL(request.url());
    if (asked.protocol !== "data:" && asked.origin !== new URL(url).origin) complaints.push(`asked elsewhere: ${request.url()}`);
  });
  await page.goto(url);
  return Object.assign(page, {
    /** Console errors that a test expects, such as that for a response of 401. */
    expects: (pattern) => expected.push(pattern),
    async done() {
      const unexpected = complaints.filter((one) => !expected.some((pattern) => pattern.test(one)));
      assert.deepEqual(unexpected, [], "the page logged errors");
      await context.close();
    },
  });
}

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Returns all violations of WCAG rules in the current state of a page. */
export async function flaws(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target.join(" ")} ${node.failureSummary}`));
}

/** Lets the dashboard show these nodes, as if they shared a store. */
export function shareStore(page, nodes) {
  const differing = nodes.filter((node) => node.differs).length;
  const json = { fingerprint: "6f0d3a51c2b87e94", differing, nodes };
  return page.route("**/admin/v1/fleet", (route) => route.fulfill({ json }));
}

/** A node, as the admin API lists it. */
export const fleetNode = (name, more = {}) => ({
  name, id: "a91c54be07d2f318", fingerprint: "6f0d3a51c2b87e94", last_seen_seconds: 2.5, own: false, differs: false, ...more,
});

/** Returns whether anything is wider than the window. */
export const isTooWide = (page) => page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth);

export const post = (base, path, body, headers = {}) => fetch(base + path, {
  method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body),
}).then((response) => response.json());
