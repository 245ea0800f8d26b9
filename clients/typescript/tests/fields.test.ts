// Header fields: the rows that all clients share, and random fields.

import assert from "node:assert/strict";
import { test } from "node:test";

import { advise } from "@tidegate/client";
import { readTestdata } from "./support.js";

interface Row {
  name: string;
  status: number;
  fields: [string, string][];
  now_ms: number;
  wait_ms: number | null;
  pace_ms: number | null;
}

const ROWS = JSON.parse(readTestdata("retry_fields.json")) as Row[];
const DAY_MS = 86_400_000;
const waitMs = (retryAfter: string, nowMs?: number) => advise(429, [["Retry-After", retryAfter]], nowMs).waitMs;

test("reads the rows that all clients share", () => {
  assert.ok(ROWS.length > 100);
  for (const { name, status, fields, now_ms, wait_ms, pace_ms } of ROWS) {
    assert.deepEqual(advise(status, fields, now_ms), { waitMs: wait_ms, paceMs: pace_ms }, name);
  }
});

test("reads a Headers object", () => {
  assert.equal(advise(429, new Headers([["retry-after", "5"]])).waitMs, 5000);
});

test("ignores oversized values", () => {
  const atMost = "5".padStart(8192, "0");
  assert.equal(waitMs(atMost), 5000);
  assert.equal(waitMs(`0${atMost}`), null);
  assert.equal(waitMs("9".repeat(8192)), DAY_MS);
});

test("ignores dates that are not in the calendar", () => {
  assert.equal(waitMs("Fri, 31 Feb 2023 00:00:00 GMT"), null);
});

test("reads two-digit years as the nearest century", () => {
  assert.equal(waitMs("Sunday, 06-Nov-94 08:49:37 GMT", 1_700_000_000_000), 0);
  assert.equal(waitMs("Sunday, 06-Nov-33 08:49:37 GMT", 1_700_000_000_000), DAY_MS);
});

test("reads the clock if no time is given", () => {
  assert.equal(waitMs("Thu, 01 Jan 1970 00:00:00 GMT"), 0);
});

test("bounds every wait for random fields", () => {
  const chance = seeded(6);
  let told = 0;
  for (let round = 0; round < 20_000; round += 1) {
    const row = ROWS[chance(ROWS.length)] as Row;
    const fields = row.fields.map(([name, value]) => [name, changed(value, chance)] as const);
    const advice = advise(row.status, fields, row.now_ms);
    for (const ms of [advice.waitMs, advice.paceMs]) {
      assert.ok(ms === null || (Number.isInteger(ms) && ms >= 0 && ms <= DAY_MS), JSON.stringify(fields));
      told += ms === null ? 0 : 1;
    }
  }
  assert.ok(told > 1000);
});

function changed(value: string, chance: (below: number) => number): string {
  const letters = '"\\;,=:?@%.-+ \t0159rtqwGMT\u0000\u007f\u0660\uffff';
  const chars = [...value];
  for (let times = chance(3); times > 0; times -= 1) {
    const letter = letters[chance(letters.length)] ?? "";
    chars.splice(chance(chars.length + 1), chance(3), letter.repeat(chance(3)));
  }
  return chars.join("");
}

/** mulberry32: the same numbers in every run. */
function seeded(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}
