// Reads the waits and pauses that the header fields of a response request.
//
// Reading never fails, because fields come from servers and proxies that may be wrong. A
// malformed field is ignored, and no wait is longer than a day. `clients/testdata/README.md`
// states the rules, which the Rust and Python clients share with the rows that test them.

import { dateMs } from "./dates.js";
import { type Bare, parseDictionary, parseList, trimmed } from "./structured.js";

/** The longest wait that is read. Longer ones are read as this one. */
export const DAY_MS = 86_400_000;

/** The longest value that is read. Longer ones are malformed. */
export const MAX_VALUE_BYTES = 8192;

/** Header fields as pairs of name and value, in the order sent; a `Headers` is one. */
export type Fields = Iterable<readonly [string, string]>;

/** The waits that a response requests. */
export interface Advice {
  /** The wait before the same request is sent again; `null` if the response has none. */
  readonly waitMs: number | null;
  /** The pause before the next request after a success; `null` unless the limit is nearly reached. */
  readonly paceMs: number | null;
}

/** Reads the fields of a response. */
export function advise(status: number, fields: Fields, nowMs: number = Date.now()): Advice {
  const values = joined(fields);
  // Times are measured from when the response was sent, by the sender's clock.
  const sentMs = dateMs(values.get("date") ?? "", nowMs) ?? nowMs;
  if (status >= 400) return { waitMs: waitMs(values, sentMs), paceMs: null };
  return { waitMs: null, paceMs: paceMs(values, sentMs) };
}

type Values = ReadonlyMap<string, string>;

interface Quota {
  readonly limit: number | null;
  readonly remaining: number;
  readonly resetMs: number | null;
}

function waitMs(values: Values, sentMs: number): number | null {
  const asked = retryAfterMs(values.get("retry-after") ?? "", sentMs);
  if (asked !== null) return asked;
  for (const quotas of forms(values, sentMs)) {
    // A limit with units left did not deny the request, even if the server lists it.
    const usedUp = quotas.filter((quota) => quota.remaining === 0);
    const longest = longestOf(usedUp.map((quota) => quota.resetMs));
    if (longest !== null) return longest;
  }
  return null;
}

function paceMs(values: Values, sentMs: number): number | null {
  for (const quotas of forms(values, sentMs)) {
    if (quotas.length === 0) continue;
    const runningOut = quotas.filter(({ limit, remaining }) => remaining * 10 <= (limit ?? 0));
    return longestOf(
      runningOut.map(({ remaining, resetMs }) => (resetMs === null ? null : Math.ceil(resetMs / (remaining + 1)))),
    );
  }
  return null;
}

function longestOf(times: (number | null)[]): number | null {
  const known = times.filter((time) => time !== null);
  return known.length === 0 ? null : known.reduce((a, b) => Math.max(a, b));
}

function retryAfterMs(value: string, sentMs: number): number | null {
  const number = parseNumber(value);
  if (number !== null) return bounded(inMs(number, 1000));
  const date = dateMs(value, sentMs);
  return date === null ? null : bounded(date - sentMs);
}

/** Returns the limits of each form, the newest form first. */
function* forms(values: Values, sentMs: number): Generator<Quota[]> {
  const ratelimit = values.get("ratelimit") ?? "";
  yield ratelimit.startsWith('"')
    ? draft10(ratelimit, values.get("ratelimit-policy") ?? "")
    : draft7(ratelimit, sentMs);
  yield separate("ratelimit", values, sentMs);
  yield separate("x-ratelimit", values, sentMs);
}

function draft10(ratelimit: string, policy: string): Quota[] {
  const limits = new Map(parseList(policy).map((item) => [item.value, natural(item.parameters.get("q"))]));
  const quotas: Quota[] = [];
  for (const { value, parameters } of parseList(ratelimit)) {
    const remaining = natural(parameters.get("r"));
    if (typeof value !== "string" || remaining === null) continue;
    const seconds = natural(parameters.get("t"));
    const resetMs = seconds === null ? null : bounded(seconds * 1000);
    quotas.push({ limit: limits.get(value) ?? null, remaining, resetMs });
  }
  return quotas;
}

function draft7(ratelimit: string, sentMs: number): Quota[] {
  const members = parseDictionary(ratelimit);
  const remaining = natural(members.get("remaining")?.value);
  if (remaining === null) return [];
  const reset = natural(members.get("reset")?.value);
  const resetIn = reset === null ? null : resetMs({ whole: reset, fraction: "" }, sentMs);
  return [{ limit: natural(members.get("limit")?.value), remaining, resetMs: resetIn }];
}

function separate(form: string, values: Values, sentMs: number): Quota[] {
  const remaining = parseNumber(values.get(`${form}-remaining`) ?? "");
  if (remaining === null || remaining.fraction !== "") return [];
  const limit = /^[0-9]+/.exec(values.get(`${form}-limit`) ?? "");
  const reset = parseNumber(values.get(`${form}-reset`) ?? "");
  return [
    {
      limit: limit === null ? null : Number(limit[0]),
      remaining: remaining.whole,
      resetMs: reset === null ? null : resetMs(reset, sentMs),
    },
  ];
}

/** Reads seconds or a Unix time. Servers send both, and the size of the number tells which it is. */
function resetMs(reset: Decimal, sentMs: number): number {
  if (reset.whole < 1e9) return bounded(inMs(reset, 1000));
  return bounded(inMs(reset, reset.whole < 1e12 ? 1000 : 1) - sentMs);
}

interface Decimal {
  readonly whole: number;
  readonly fraction: string;
}

function parseNumber(value: string): Decimal | null {
  const match = /^([0-9]+)(?:\.([0-9]+))?$/.exec(value);
  // Numbers that are too large to be exact are beyond every bound.
  return match === null ? null : { whole: Number(match[1]), fraction: match[2] ?? "" };
}

/** Rounded up, by digits: `1.1 * 1000` is more than 1100. */
function inMs({ whole, fraction }: Decimal, unitMs: 1 | 1000): number {
  const places = unitMs === 1000 ? 3 : 0;
  const digits = Number(fraction.slice(0, places).padEnd(places, "0"));
  const more = /[1-9]/.test(fraction.slice(places)) ? 1 : 0;
  return whole * unitMs + digits + more;
}

function natural(value: Bare): number | null {
  return typeof value === "number" && value >= 0 ? value : null;
}

function bounded(ms: number): number {
  return Math.min(Math.max(ms, 0), DAY_MS);
}

const NAMES = new Set(["date", "retry-after", "ratelimit", "ratelimit-policy"]);
for (const form of ["ratelimit", "x-ratelimit"]) {
  for (const part of ["limit", "remaining", "reset"]) NAMES.add(`${form}-${part}`);
}

function joined(fields: Fields): Values {
  const values = new Map<string, string>();
  for (const [anyCase, untrimmed] of fields) {
    const name = anyCase.toLowerCase();
    if (!NAMES.has(name)) continue;
    const [before, value] = [values.get(name), trimmed(untrimmed)];
    values.set(name, before === undefined ? value : `${before}, ${value}`);
  }
  for (const [name, value] of values) {
    if (value.length > MAX_VALUE_BYTES) values.delete(name);
  }
  return values;
}
