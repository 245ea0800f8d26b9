// Backoff, budget, pacing, and a request with its retries.

import assert from "node:assert/strict";
import { type IncomingMessage, get } from "node:http";
import { test } from "node:test";

import { Backoff, Budget, Pacer, type ResponseLike, Retrier, retry, retryFetch } from "@tidegate/client";
import { NOBODY, startScripted, startSilent } from "./support.js";

const reply = (status: number, headers: Record<string, string> = {}): ResponseLike => ({
  status,
  headers: new Headers(headers),
});
const atOnce = () => Promise.resolve();

test("adds jitter to the requested wait", () => {
  const rows: [retry: number, waitMs: number | null, chance: number, expect: number | null][] = [
    [0, null, 0, 0],
    [0, null, 0.5, 50],
    [1, null, 0.5, 100],
    [2, null, 1, 400],
    [3, 2000, 0.5, 2400], // added to the requested wait
    [3, 0, 0.5, 400],
    [4, null, 0.5, null], // no retries left
    [0, 60_000, 0, 60_000],
    [0, 60_001, 0, null], // too long: not shortened
    [0, 86_400_000, 0, null],
  ];
  for (const [number, waitMs, chance, expect] of rows) {
    assert.equal(new Backoff().delayMs(number, waitMs, () => chance), expect);
  }
});

test("caps the jitter", () => {
  const backoff = new Backoff({ retries: 10_000 });
  assert.equal(backoff.delayMs(7, null, () => 1), 10_000);
  assert.equal(backoff.delayMs(9_999, null, () => 1), 10_000);
});

test("names invalid settings", () => {
  for (const bad of [{ retries: -1 }, { baseMs: NaN }, { capMs: Infinity }, { maxWaitMs: 2 ** 31 }, { deadlineMs: -1 }]) {
    assert.throws(() => new Backoff(bad), new RegExp(`^RangeError: ${Object.keys(bad)[0]} must be between`));
  }
  assert.throws(() => new Budget({ ratio: 2 }), /^RangeError: ratio must be/);
  assert.throws(() => new Budget({ reserve: 0 }), /^RangeError: reserve must be/);
});

// Regression: they were accepted. `true` meant one retry, and a string was appended to a number.
test("names settings of another type", () => {
  const rows: [() => unknown, string][] = [
    [() => new Backoff({ maxWaitMs: "20" } as never), "maxWaitMs must be a number, not string"],
    [() => new Backoff({ retries: "3" } as never), "retries must be a number, not string"],
    [() => new Backoff({ retries: true } as never), "retries must be a number, not boolean"],
    [() => new Backoff({ baseMs: null } as never), "baseMs must be a number, not null"],
    [() => new Budget({ ratio: "0.2" } as never), "ratio must be a number, not string"],
    [() => new Budget({ reserve: null } as never), "reserve must be a number, not null"],
    [() => new Budget({ rate: 1 } as never), "budget: rate is unknown: use ratio or reserve"],
    [() => new Retrier({ backoff: 3 } as never), "backoff must be a Backoff, such as new Backoff({ retries: 3 }), not number"],
    [() => new Retrier({ budget: null } as never), "budget must be a Budget, such as new Budget({ ratio: 0.1 }), not null"],
    [() => new Retrier({ keysHonoured: "no" } as never), "keysHonoured must be a boolean, not string"],
  ];
  for (const [create, message] of rows) assert.throws(create, { name: "TypeError", message });
});

// Regression: they were accepted, and the first request failed with "retrier.begin is not a function".
test("rejects a retrier of another type when it is given", async () => {
  const error = { name: "TypeError", message: "retrier must be a Retrier, such as new Retrier({ backoff: new Backoff({ retries: 3 }) })" };
  for (const value of [new Backoff(), { retries: 1 }, null, 3]) {
    assert.throws(() => retryFetch(value as never), error);
    await assert.rejects(retry(async () => reply(200), { retrier: value as never }), error);
  }
  assert.throws(() => retryFetch(new Retrier(), {} as never), { name: "TypeError", message: "inner must be a function, not object" });
});

test("bounds retries to a fraction of the requests", () => {
  const budget = new Budget({ ratio: 0.5, reserve: 2 });
  const three = () => [1, 2, 3].map(() => budget.withdraw());
  assert.deepEqual(three(), [true, true, false]);
  budget.deposit();
  assert.equal(budget.withdraw(), false);
  budget.deposit();
  assert.equal(budget.withdraw(), true);
  for (let times = 0; times < 100; times += 1) budget.deposit();
  assert.deepEqual(three(), [true, true, false]);
});

test("spaces out requests when little remains", () => {
  let now = 100_000;
  const pacer = new Pacer(2000, () => now, () => 0);
  const three = () => [1, 2, 3].map(() => pacer.pauseMs("a"));
  assert.equal(pacer.pauseMs("a"), 0);
  pacer.observe("a", 500);
  assert.deepEqual(three(), [500, 1000, 1500]);
  assert.equal(pacer.pauseMs("b"), 0);
  assert.deepEqual(three(), [2000, 2000, 2000]);
  now += 60_000;
  assert.equal(pacer.pauseMs("a"), 0);
  pacer.observe("a", 86_400_000);
  assert.equal(pacer.pauseMs("a"), 2000);
  pacer.observe("a", null);
  assert.equal(pacer.pauseMs("a"), 0);
});

test("bounds the number of paced servers", () => {
  const pacer = new Pacer(2000, () => 0, () => 0);
  for (let number = 0; number < 5000; number += 1) pacer.observe(String(number), 1000);
  assert.ok(pacer.size <= 1024);
  assert.equal(pacer.pauseMs("0"), 0);
  assert.equal(pacer.pauseMs("4999"), 1000);
});

const REFUSED = reply(429, { "retry-after": "1" });
const BUSY = reply(503);
const BUSY_UNTIL = reply(503, { "retry-after": "1" });
const GONE = new TypeError("fetch failed", { cause: { code: "UND_ERR_SOCKET" } });
const REFUSED_TO_CONNECT = new TypeError("fetch failed", { cause: { code: "ECONNREFUSED" } });
const STOPPED = new DOMException("stopped", "AbortError");
const OK = reply(200);

test("retries by method, status and key", async () => {
  const rows: [method: string, keysHonoured: boolean, script: (ResponseLike | Error)[], tries: number][] = [
    ["GET", false, [OK], 1],
    ["GET", false, [reply(404)], 1],
    ["GET", false, [reply(500)], 1],
    ["GET", false, [REFUSED, OK], 2],
    ["GET", false, [BUSY, GONE, REFUSED, OK], 4],
    ["GET", false, Array<ResponseLike>(9).fill(REFUSED), 5],
    ["GET", false, Array<Error>(9).fill(GONE), 5],
    ["GET", false, [STOPPED, OK], 1],
    ["GET", false, [reply(429, { "retry-after": "3155760000" }), OK], 1],
    ["GET", false, [reply(429, { "retry-after": "-1" }), OK], 2],
    ["POST", false, [REFUSED, OK], 2],
    ["POST", false, [BUSY_UNTIL, OK], 2],
    ["POST", false, [BUSY, OK], 1],
    ["POST", false, [GONE, OK], 1],
    // The function may have followed a redirect, so the first server may have processed the request.
    ["POST", false, [REFUSED_TO_CONNECT, OK], 1],
    ["POST", true, [REFUSED_TO_CONNECT, OK], 2],
    ["GET", false, [REFUSED_TO_CONNECT, OK], 2],
    ["POST", true, [BUSY, GONE, OK], 3],
    ["patch", false, [BUSY, OK], 1],
    ["delete", false, [BUSY, OK], 2],
  ];
  for (const [method, keysHonoured, script, tries] of rows) {
    await course(method, keysHonoured, script, tries);
  }
});

async function course(method: string, keysHonoured: boolean, script: (ResponseLike | Error)[], tries: number) {
  const [keys, waits]: [(string | undefined)[], number[]] = [[], []];
  const outcome = await retry<ResponseLike>(
    (headers) => {
      keys.push(headers["Idempotency-Key"]);
      const next = script[keys.length - 1];
      return next === undefined || next instanceof Error ? Promise.reject(next) : Promise.resolve(next);
    },
    { method, retrier: new Retrier({ keysHonoured }), sleep: async (ms) => void waits.push(ms) },
  ).catch((error: unknown) => error);
  assert.equal(outcome, script[tries - 1]);
  assert.equal(keys.length, tries);
  // One key for all attempts, only for methods that are not idempotent.
  assert.equal(new Set(keys).size, 1);
  assert.equal(keys[0] !== undefined, ["POST", "PATCH"].includes(method.toUpperCase()));
  if (keys[0] !== undefined) assert.match(keys[0], /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  const delays = waits.filter((_, index) => index % 2 === 1);
  delays.forEach((delay, number) => {
    const outcome = script[number];
    const asked = outcome === REFUSED || outcome === BUSY_UNTIL ? 1000 : 0;
    assert.ok(delay >= asked && delay <= asked + 100 * 2 ** number, `${delay}`);
  });
}

/** The number of attempts if the first one fails. */
async function triesAfter(error: unknown, failures?: (error: unknown) => boolean): Promise<number> {
  let tries = 0;
  const send = async () => {
    tries += 1;
    if (tries === 1) throw error;
    return OK;
  };
  const options = { retrier: new Retrier(), sleep: atOnce, ...(failures === undefined ? {} : { failures }) };
  await retry(send, options).catch((last: unknown) => assert.equal(last, error));
  return tries;
}

const withCode = (code: unknown, cause?: unknown) => Object.assign(new Error("failed", { cause }), { code });

// Regression: every `TypeError` was retried, also of a bug, and no failure of another client than `fetch`.
test("recognises failed connections of any client", async () => {
  const failed = [
    ...["ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EPIPE", "ETIMEDOUT", "ENOTFOUND", "EAI_AGAIN"].map((code) => withCode(code)),
    ...["EHOSTUNREACH", "ENETUNREACH", "UND_ERR_HEADERS_TIMEOUT", "ERR_NETWORK"].map((code) => withCode(code)),
    new TypeError("fetch failed", { cause: withCode("ENOTFOUND") }),
    new Error("failed", { cause: new Error("failed", { cause: withCode("ECONNRESET") }) }),
    withCode("ERR_LIBRARY", withCode("ECONNRESET")),
    { code: "ECONNREFUSED" },
    new TypeError("Failed to fetch"), // Chromium
    new TypeError("network error"), // Chromium, within a body
    new TypeError("NetworkError when attempting to fetch resource."), // Firefox
    new TypeError("Load failed"), // Safari
    new TypeError("The Internet connection appears to be offline."), // Safari
  ];
  for (const error of failed) assert.equal(await triesAfter(error), 2, String(error));
});

test("throws other errors at once", async () => {
  const circle = new Error("a");
  circle.cause = new Error("b", { cause: circle });
  const others = [
    new TypeError("Cannot read properties of undefined (reading 'x')"), // a bug
    new TypeError("Failed to parse URL from no address", { cause: withCode("ERR_INVALID_URL") }),
    new TypeError("fetch failed", { cause: new Error("unknown scheme") }),
    new TypeError("fetch failed", { cause: withCode("CERT_HAS_EXPIRED") }),
    new Error("Failed to fetch"),
    withCode("ENOENT"),
    withCode("ERR_BAD_REQUEST"), // axios: a response
    withCode("ERR_CANCELED"),
    withCode(23),
    STOPPED,
    circle,
    null,
    "ECONNREFUSED",
  ];
  for (const error of others) assert.equal(await triesAfter(error), 1, String(error));
});

test("retries the given failures instead", async () => {
  assert.equal(await triesAfter(new RangeError(), (error) => error instanceof RangeError), 2);
  assert.equal(await triesAfter(withCode("ECONNREFUSED"), () => false), 1);
});

test("retries refused connections of fetch and of node:http", async () => {
  const byHttp = () => new Promise<IncomingMessage>((resolve, reject) => get(NOBODY, resolve).on("error", reject));
  for (const refused of [() => fetch(NOBODY), byHttp]) {
    for (const [method, most] of [["GET", 4], ["POST", 1]] as const) {
      let tries = 0;
      const send = async () => {
        tries += 1;
        await refused();
        return OK;
      };
      const retrier = new Retrier({ backoff: new Backoff({ retries: 3 }) });
      await assert.rejects(retry(send, { method, retrier, sleep: atOnce }));
      assert.equal(tries, most);
    }
  }
});

test("stops retrying when the budget is spent", async () => {
  const retrier = new Retrier({ budget: new Budget({ ratio: 0.1, reserve: 5 }) });
  let sent = 0;
  const send = async () => {
    sent += 1;
    return BUSY;
  };
  for (let times = 0; times < 1000; times += 1) await retry(send, { retrier, sleep: atOnce });
  assert.ok(sent > 1000 && sent <= 1000 + 5 + 100, `${sent}`);
});

test("begins no retry after the deadline", async () => {
  const retrier = new Retrier({ backoff: new Backoff({ deadlineMs: 5000 }) });
  const script = [reply(429, { "retry-after": "6" }), OK];
  const last = await retry(async () => script.shift() ?? OK, { retrier, sleep: atOnce });
  assert.equal(last.status, 429);
});

test("delays the next request when little remains", async () => {
  const low = reply(200, { ratelimit: '"api";r=0;t=30', "ratelimit-policy": '"api";q=100;w=60' });
  const waits: number[] = [];
  const retrier = new Retrier();
  for (const response of [low, OK, OK]) {
    await retry(async () => response, { retrier, sleep: async (ms) => void waits.push(ms) });
  }
  const [first, paced, afterwards] = waits;
  assert.deepEqual([first, afterwards], [0, 0]);
  assert.ok(paced !== undefined && paced > 400 && paced <= 1000, `${paced}`);
});

const quick = () => retryFetch(new Retrier({ backoff: new Backoff({ baseMs: 1, maxWaitMs: 1000 }) }));
const LATER: [number, Record<string, string>] = [429, { "retry-after": "0" }];

test("fetch: waits after a denial and sends the body again", async () => {
  const { url, script, seen } = await startScripted();
  script.push(LATER, [503, { "retry-after": "0" }], [200, {}]);
  assert.equal((await quick()(url, { method: "POST", body: "work" })).status, 200);
  assert.deepEqual(seen.map(({ method, body }) => [method, body]), Array(3).fill(["POST", "work"]));
  assert.equal(new Set(seen.map(({ headers }) => headers["idempotency-key"])).size, 1);
  assert.ok(seen[0]?.headers["idempotency-key"]);
});

test("fetch: returns the denial if its wait is too long", async () => {
  const { url, script, seen } = await startScripted();
  script.push([429, { "retry-after": "3155760000" }]);
  assert.equal((await quick()(new URL(url))).status, 429);
  assert.equal(seen[0]?.headers["idempotency-key"], undefined);
});

test("fetch: stops after the last retry", async () => {
  const { url, script, seen } = await startScripted();
  for (let times = 0; times < 9; times += 1) script.push([503, {}]);
  assert.equal((await quick()(new Request(url, { headers: { "x-a": "b" } }))).status, 503);
  assert.deepEqual(seen.map(({ headers }) => headers["x-a"]), Array(5).fill("b"));
});

// Regression: the server processed the POST five times.
test("fetch: does not repeat a POST if its redirect fails", async () => {
  const { url, script, seen } = await startScripted();
  for (let times = 0; times < 9; times += 1) script.push([303, { location: NOBODY }]);
  await assert.rejects(quick()(url, { method: "POST", body: "work" }), TypeError);
  assert.equal(seen.length, 1);
});

// Regression: a denial after the redirect was taken for one of the POST, which was then repeated.
test("fetch: does not repeat a POST that was redirected before it was denied", async () => {
  const { url, script, seen } = await startScripted();
  for (let times = 0; times < 9; times += 1) script.push([303, { location: url }], LATER);
  assert.equal((await quick()(url, { method: "POST", body: "work" })).status, 429);
  assert.deepEqual(seen.map((request) => request.method), ["POST", "GET"]);
});

test("fetch: repeats a POST after a refused connection if no redirect is followed", async () => {
  const rows: [redirect: RequestRedirect | undefined, code: string, tries: number][] = [
    [undefined, "ECONNREFUSED", 1],
    ["follow", "ECONNREFUSED", 1],
    ["manual", "ECONNREFUSED", 2],
    ["error", "ENOTFOUND", 2],
    ["error", "ECONNRESET", 1], // the request may have been sent
  ];
  for (const [redirect, code, tries] of rows) {
    for (const asRequest of [true, false]) {
      let tried = 0;
      const inner: typeof fetch = async () => {
        tried += 1;
        if (tried === 1) throw new TypeError("fetch failed", { cause: { code } });
        return new Response();
      };
      const init = { method: "POST", ...(redirect === undefined ? {} : { redirect }) };
      const patient = retryFetch(new Retrier(), inner);
      await (asRequest ? patient(new Request("http://a/", init)) : patient("http://a/", init)).catch(() => {});
      assert.equal(tried, tries, `${redirect} ${code}`);
    }
  }
});

test("fetch: sends a stream once", async () => {
  const { url, script, seen } = await startScripted();
  script.push(LATER, LATER, LATER);
  const body = () => new Blob(["work"]).stream();
  assert.equal((await quick()(url, { method: "PUT", body: body(), duplex: "half" } as RequestInit)).status, 429);
  assert.equal((await quick()(new Request(url, { method: "PUT", body: "work" }))).status, 429);
  assert.deepEqual(seen.map((request) => request.body), ["work", "work"]);
});

test("fetch: keeps the caller's key", async () => {
  const { url, script, seen } = await startScripted();
  script.push([502, {}], [200, {}]);
  assert.equal((await quick()(url, { method: "POST", headers: { "Idempotency-Key": "mine" } })).status, 200);
  assert.deepEqual(seen.map(({ headers }) => headers["idempotency-key"]), ["mine", "mine"]);
});

test("fetch: rejects for unreachable servers and invalid URLs", async () => {
  await assert.rejects(quick()(NOBODY), TypeError);
  await assert.rejects(quick()("no address"), TypeError);
});

test("fetch: can be aborted while it sends and while it waits", async () => {
  await assert.rejects(quick()(await startSilent(), { signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  const { url, script, seen } = await startScripted();
  script.push([429, { "retry-after": "30" }]);
  const patient = retryFetch(new Retrier());
  await assert.rejects(patient(url, { signal: AbortSignal.timeout(300) }), { name: "TimeoutError" });
  assert.ok(seen.length <= 1);
});
