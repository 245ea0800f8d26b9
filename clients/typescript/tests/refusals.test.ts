// A service sends the same fields and documents as tidegate does through a gateway.

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Answer, Client, type Line, rateLimitFields, refusal, unavailable } from "@tidegate/client";
import { startTidegate } from "./support.js";

type Said = Record<string, unknown>;

test("makes the same response as the server", async () => {
  const url = await startTidegate();
  const client = new Client({ url, timeoutMs: 10_000 });
  for (const [number, path] of ["/login", "/api/a", "/elsewhere"].entries()) {
    const attributes = { method: "POST", path, clientIp: `198.51.100.${number}` };
    const headers = {
      "x-forwarded-method": "POST",
      "x-forwarded-uri": path,
      "x-forwarded-for": `198.51.101.${number}`,
    };
    for (let times = 0; times < 5; times += 1) {
      const answer = await client.check({ attributes });
      const theirs = await fetch(`${url}/v1/forward-auth`, { headers });
      const names = ["retry-after", "ratelimit", "ratelimit-policy"].filter((name) => theirs.headers.has(name));
      const expect = Object.fromEntries(names.map((name) => [name, theirs.headers.get(name)]));
      assert.deepEqual(timeless(Object.fromEntries(rateLimitFields(answer))), timeless(expect));
      assert.equal(answer.allowed, theirs.status === 200);
      const body = await theirs.text();
      if (answer.allowed) continue;
      const ours = refusal(answer);
      assert.deepEqual([ours.status, theirs.status], [429, 429]);
      assert.deepEqual(timeless(JSON.parse(ours.body) as Said), timeless(JSON.parse(body) as Said));
      assert.deepEqual(ours.fields.map(([name]) => name), ["content-type", ...names]);
    }
  }
});

/** Without the seconds: the two were asked one after the other. */
function timeless(said: Said): Said {
  const without = (value: unknown) => String(value).replace(/(^|;t=|after )\d+( s)?$/, "$1...");
  return Object.fromEntries(Object.entries(said).map(([name, value]) => [name, without(value)]));
}

const line = (policy: string | null, windowMs: number, more: Partial<Line> = {}): Line => ({
  policy,
  limit: 5,
  windowMs,
  algorithm: "sliding-log",
  remaining: 0,
  allowed: false,
  retryAfterMs: 300,
  mode: null,
  decided: "exact",
  ...more,
});
const DENIED: Answer = {
  allowed: false,
  policy: "api",
  limit: 5,
  remaining: 0,
  retryAfterMs: 300,
  resetAfterMs: 1000,
  decided: "exact",
  limits: [line("api", 1000)],
  noRoom: false,
};
const policyField = (answer: Answer) => new Map(rateLimitFields(answer)).get("ratelimit-policy");

test("names each limit uniquely", () => {
  const rows: [Line[], string][] = [
    [[line("a", 1000)], '"a";q=5;w=1'],
    [[line("a", 1500)], '"a";q=5;w=2'],
    [[line("a", 1000), line("a", 60_000)], '"a-1s";q=5;w=1, "a-1m";q=5;w=60'],
    [[line("a", 1000), line("a", 1000)], '"a-1s";q=5;w=1, "a-1s-2";q=5;w=1'],
    [[line("a", 1000), line("a", 2000), line("a-1s", 7000)], '"a-1s-2";q=5;w=1, "a-2s";q=5;w=2, "a-1s";q=5;w=7'],
    [[line(null, 604_800_000), line(null, 1)], '"1w";q=5;w=604800, "1ms";q=5;w=1'],
    [[line("a", 60_000, { algorithm: "concurrency" })], '"a";q=5;qu="concurrent-requests"'],
    [[line('a"\\\u0000é', 1000)], String.raw`"a\"\\??";q=5;w=1`],
    [[line("a", 1000, { mode: "observe" }), line("b", 1000)], '"b";q=5;w=1'],
  ];
  for (const [limits, expect] of rows) assert.equal(policyField({ ...DENIED, limits }), expect);
});

test("always lists the reported limit", () => {
  const limits = Array.from({ length: 255 }, (_, number) => line(`policy-${number}`, 1000));
  limits.push(line("policy-255", 1000, { limit: 7 }));
  const policy = policyField({ ...DENIED, policy: "policy-255", limit: 7, limits }) ?? "";
  assert.ok(policy.length <= 2048);
  assert.ok(policy.endsWith('"policy-255";q=7;w=1'));
});

test("chooses the status and the problem type", () => {
  const rows: [Partial<Answer>, number, string, string | undefined][] = [
    [{}, 429, "quota-exceeded", "1"],
    [{ retryAfterMs: null }, 429, "quota-exceeded", undefined],
    [{ noRoom: true }, 429, "temporary-reduced-capacity", "1"],
    [{ decided: "failed-closed", remaining: null }, 503, "temporary-reduced-capacity", "1"],
  ];
  for (const [more, status, kind, retryAfter] of rows) {
    const refused = refusal({ ...DENIED, ...more });
    const problem = JSON.parse(refused.body) as Said;
    assert.deepEqual([refused.status, problem["status"]], [status, status]);
    assert.equal(String(problem["type"]).split("#")[1], kind);
    assert.deepEqual(problem["violated-policies"], ["api"]);
    assert.equal(new Map(refused.fields).get("retry-after"), retryAfter);
  }
});

test("names the cause in the detail", () => {
  const rows: [number, number | null, string][] = [
    [0, 300, "used up: `5 per 1s sliding-log` of policy api; retry after 1 s"],
    [3, 300, "not enough left: `5 per 1s sliding-log` of policy api; retry after 1 s"],
    [3, null, "this cost can never pass `5 per 1s sliding-log` of policy api"],
  ];
  for (const [remaining, retryAfterMs, detail] of rows) {
    const limits = [line("api", 1000, { remaining, retryAfterMs })];
    const refused = refusal({ ...DENIED, remaining, retryAfterMs, limits });
    assert.equal((JSON.parse(refused.body) as Said)["detail"], detail);
  }
});

test("makes a 503 when tidegate makes no decision", () => {
  const refused = unavailable();
  assert.equal(refused.status, 503);
  assert.deepEqual(refused.fields, [["content-type", "application/problem+json"], ["retry-after", "1"]]);
});
