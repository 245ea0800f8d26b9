// Screenshots for the documentation: screenshots.mjs DIRECTORY

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { browse, open, post, serve } from "./harness.mjs";

const home = process.argv[2];
if (!home) throw new Error("say where to: screenshots.mjs DIRECTORY");
mkdirSync(home, { recursive: true });

const POLICIES = `
policies:
  - name: login
    match: { methods: [POST], path: /login }
    key: "{client_ip}"
    limits: ["20 per 1m sliding-log"]
  - name: api
    match: { path: "/api/**" }
    key: "{header:x-api-key | client_ip}"
    limits: ["3000 per 1m sliding-window"]
  - name: search
    match: { path: "/api/search" }
    key: "{header:x-api-key | client_ip}"
    limits: ["20 per 1s sliding-window"]
  - name: reports
    match: { path: /reports }
    key: "{header:x-user}"
    limits: ["60 per 1m"]
    mode: observe
`;

/** The final state of the attack on the estimate, at a limit that has cells. */
async function playground(browser, base, name, options) {
  const page = await open(browser, `${base}/playground`, { reducedMotion: "reduce", ...options });
  await page.fill("#guess-beat-0", "60");
  await page.click("#experiment-beat button");
  await page.locator("#experiment-beat .why").waitFor({ state: "visible" });
  await page.evaluate(() => { document.activeElement.blur(); scrollTo(0, 0); });
  await page.screenshot({ path: join(home, name) });
  await page.done();
}

/** Sends traffic in waves until it is stopped. */
async function waves(base, isOver) {
  const ask = (attributes) => post(base, "/v1/check", { attributes });
  for (let number = 0; !isOver(); number += 1) {
    const wave = 6 + Math.round(5 * Math.sin(number / 25));
    const jobs = Array.from({ length: wave }, (_, index) => ask({ path: "/api/items", headers: { "x-api-key": `team-${index % 5}` } }));
    for (const team of ["team-1", "team-4"]) jobs.push(ask({ path: "/api/search", headers: { "x-api-key": team } }));
    jobs.push(ask({ method: "POST", path: "/login", client_ip: `192.0.2.${number % 3}` }));
    if (number % 2 === 0) jobs.push(ask({ path: "/reports", headers: { "x-user": "alice" } }));
    await Promise.all(jobs);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

async function dashboard(browser, base, name, seconds, options) {
  const page = await open(browser, `${base}/dashboard`, options);
  await page.waitForTimeout(seconds * 1000);
  await page.screenshot({ path: join(home, name) });
  await page.done();
}

const [server, browser] = await Promise.all([serve({ config: POLICIES }), browse()]);
let over = false;
const load = waves(server.http, () => over);
try {
  const size = (width, height) => ({ viewport: { width, height } });
  await dashboard(browser, server.admin, "dashboard.png", 62, size(1180, 900));
  over = true;
  await playground(browser, server.http, "playground.png", size(1120, 1180));
  await playground(browser, server.http, "playground-dark.png", { ...size(1120, 1180), colorScheme: "dark" });
  await playground(browser, server.http, "playground-phone.png", size(390, 844));
} finally {
  over = true;
  await load;
  await Promise.all([browser.close(), server.stop()]);
}
