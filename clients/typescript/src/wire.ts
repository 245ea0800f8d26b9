// The wire format of requests and answers.

import type { Answer, Denied, Line, Problem } from "./answers.js";
import { PermitLost, Rejected, Unavailable, UnexpectedAnswer, kindOf, rejectUnknown, requireType } from "./errors.js";
import { advise } from "./fields.js";

/** The attributes of a request, by which the server selects policies and makes keys. */
export interface Attributes {
  method?: string;
  path?: string;
  query?: string;
  host?: string;
  clientIp?: string;
  headers?: Record<string, string>;
  /** The domain of the descriptors. */
  domain?: string;
  /** Several objects, where a name occurs twice. */
  descriptors?: Record<string, string> | readonly Record<string, string>[];
}

interface Options {
  /** The units to charge: 0 peeks, a negative number refunds. Default: 1. */
  cost?: number;
}

interface CheckOptions extends Options {
  /** The idempotency id: a check with the same id is charged once. */
  id?: string;
  /** Whether to charge even if the limit is exceeded. */
  force?: boolean;
}

/** What is checked: a key under a policy, a request by its attributes, or a key under given limits. */
export type Subject =
  | { policy: string; key: string; attributes?: Attributes }
  | { attributes: Attributes; policy?: string }
  | { key: string; limits: readonly string[] };

/** A check. */
export type Check = Subject & CheckOptions;

/** A check that may wait at the server. */
export type WaitingCheck = Check & {
  /** The longest time to wait instead of being denied. */
  maxWaitMs?: number;
};

/** A request for a permit. */
export type PermitRequest = Subject & Options & { ttlMs?: number };

/** A complete response, and the URL of its request without credentials. */
export interface Raw {
  readonly url: string;
  readonly status: number;
  readonly fields: readonly (readonly [string, string])[];
  readonly body: string;
}

/** A permit as the server returns it. */
export interface Grant {
  readonly answer: Answer;
  readonly id: string;
  readonly ttlMs: number;
}

/** The largest cost that the server accepts. */
const MAX_COST = 1e12;
/** The longest wait that the server accepts. */
const MAX_WAIT_MS = 60_000;
/** The longest text of a server that a message repeats, in characters. */
const MAX_SHOWN = 200;

const QUESTION = ["policy", "key", "attributes", "limits", "cost"];
const CHECK = [...QUESTION, "id", "force", "maxWaitMs"];
const PERMIT = [...QUESTION, "ttlMs"];
const ATTRIBUTES = ["method", "path", "query", "host", "clientIp", "headers", "domain", "descriptors"];

// Types and ranges are checked here. The server would reject them too, but with a `TidegateError`, for which a
// caller may fail open. The server checks the rest, such as names of policies, the text of limits and the values
// of attributes, which may be a client's.

/** Returns the body of a check with the API's names. JSON leaves out members that are `undefined`. */
export function encodeCheck(check: WaitingCheck): object {
  rejectUnknown("check", check, CHECK);
  const { maxWaitMs, ...same }: AnyQuestion = check;
  requireSubject(same);
  requireType("id", same.id ?? undefined, "string");
  requireType("force", same.force ?? undefined, "boolean");
  requireWhole("cost", same.cost, -MAX_COST, MAX_COST);
  requireWhole("maxWaitMs", maxWaitMs, 0, MAX_WAIT_MS);
  return { ...same, attributes: encodeAttributes(same.attributes), max_wait_ms: maxWaitMs };
}

/** Returns the body of a request for a permit with the API's names. */
export function encodePermit(request: PermitRequest): object {
  rejectUnknown("permit", request, PERMIT);
  const { ttlMs, ...same }: AnyQuestion = request;
  requireSubject(same);
  requireWhole("cost", same.cost, 1, MAX_COST);
  return { ...same, attributes: encodeAttributes(same.attributes), ttl_ms: checkedTtl(ttlMs) };
}

/** Returns the length of a lease. */
export function checkedTtl(ttlMs: number | undefined): number | undefined {
  requireWhole("ttlMs", ttlMs, 1, Infinity);
  return ttlMs;
}

/** Rejects a number that JSON cannot express (it would become `null`, the default) or the server does not accept. */
function requireWhole(name: string, value: number | undefined, least: number, most: number): void {
  requireType(name, value, "number");
  if (value === undefined) return;
  if (!Number.isSafeInteger(value)) throw new RangeError(`${name} must be a whole number, not ${value}`);
  if (value >= least && value <= most) return;
  const range = most === Infinity ? `at least ${least}` : `from ${least} to ${most}`;
  throw new RangeError(`${name} must be ${range}, not ${value}`);
}

function requireSubject({ policy, limits, attributes, ...question }: AnyQuestion): void {
  requireType("policy", policy ?? undefined, "string");
  // A key that is present but undefined is a mistake: the check would count another key, or none.
  if ("key" in question && typeof question.key !== "string") {
    throw new TypeError(`key must be a string, not ${kindOf(question.key)}`);
  }
  requireTexts("limits", limits ?? []);
  const underLimits = (policy ?? limits ?? null) !== null;
  if (attributes === undefined && !("key" in question && underLimits)) {
    throw new TypeError("policy and key, attributes, or key and limits are required");
  }
}

function requireTexts(name: string, value: unknown): void {
  const expected = `${name} must be an array of strings, such as ["5 per 1s"]`;
  if (!Array.isArray(value)) throw new TypeError(`${expected}, not ${kindOf(value)}`);
  const other = value.findIndex((text) => typeof text !== "string");
  if (other !== -1) throw new TypeError(`${expected}, but contains ${kindOf(value[other])}`);
}

/** A check or a request for a permit whose members are not checked yet. */
interface AnyQuestion {
  policy?: unknown;
  key?: unknown;
  limits?: unknown;
  id?: unknown;
  force?: unknown;
  cost?: number;
  attributes?: Attributes;
  maxWaitMs?: number;
  ttlMs?: number;
}

function encodeAttributes(attributes: Attributes | undefined): object | undefined {
  if (attributes === undefined) return undefined;
  rejectUnknown("attributes", attributes, ATTRIBUTES);
  const { clientIp, ...same } = attributes;
  return { ...same, client_ip: clientIp };
}

export function unexpected(url: string, reason: string): UnexpectedAnswer {
  return new UnexpectedAnswer(`unexpected answer from ${url}: ${reason}`);
}

export function decodeAnswer(raw: Raw): Answer {
  return answerOf(documentOf(raw, 200));
}

export function decodeAnswers(raw: Raw, count: number): (Answer | Problem)[] {
  const rows = documentOf(raw, 200).list("answers");
  if (rows.length !== count) throw unexpected(raw.url, `${rows.length} answers to ${count} checks`);
  return rows.map((row) => (row.has("allowed") ? answerOf(row) : problemOf(row)));
}

export function decodeGrant(raw: Raw): Grant | Denied {
  if (raw.status === 429) {
    const retryAfter = raw.fields.filter(([name]) => name.toLowerCase() === "retry-after");
    return {
      allowed: false,
      problem: problemOf(rowOf(raw)),
      retryAfterMs: advise(429, retryAfter).waitMs,
      fields: raw.fields.filter(([name]) => /^(retry-after|ratelimit|ratelimit-.*|x-ratelimit-.*)$/i.test(name)),
    };
  }
  const row = documentOf(raw, 201);
  return { answer: answerOf(row), id: row.get("id", "string"), ttlMs: row.get("ttl_ms", "number") };
}

/** Returns the length of the renewed lease. */
export function decodeRenewal(raw: Raw): number {
  requireHeld(raw);
  return documentOf(raw, 200).get("ttl_ms", "number");
}

export function decodeRelease(raw: Raw): void {
  requireHeld(raw);
  if (raw.status !== 204) throw refusalOf(raw);
}

function requireHeld(raw: Raw): void {
  if (raw.status !== 404) return;
  const refusal = refusalOf(raw);
  throw refusal instanceof Rejected ? new PermitLost(refusal.problem, raw.url) : refusal;
}

function documentOf(raw: Raw, status: number): Row {
  if (raw.status !== status) throw refusalOf(raw);
  return rowOf(raw);
}

function refusalOf(raw: Raw): Error {
  if (raw.status < 400) return unexpected(raw.url, `unexpected status ${raw.status}`);
  try {
    const problem = problemOf(rowOf(raw));
    return raw.status === 503 ? new Unavailable(problem, raw.url) : new Rejected(problem, raw.url);
  } catch (error) {
    if (!(error instanceof UnexpectedAnswer)) throw error;
    return unexpected(raw.url, `status ${raw.status} without a problem document${plainText(raw)}`);
  }
}

/** The first line of a plain-text body, for a message. Other ports and proxies may name the mistake there. */
function plainText(raw: Raw): string {
  const [, kind = ""] = raw.fields.find(([name]) => name.toLowerCase() === "content-type") ?? [];
  if (kind.split(";")[0]?.trim().toLowerCase() !== "text/plain") return "";
  const line = raw.body.trim().split("\n", 1)[0]?.trim() ?? "";
  // A character has one or two code units.
  const characters = [...line.slice(0, 2 * (MAX_SHOWN + 1))];
  const more = characters.length > MAX_SHOWN ? "..." : "";
  const shown = characters.slice(0, MAX_SHOWN).join("");
  // A control character could change what a terminal shows.
  const escaped = shown.replace(/(?! )[\p{C}\p{Z}]/gu, (c) => `\\u{${c.codePointAt(0)?.toString(16)}}`);
  return escaped === "" ? "" : `: ${escaped}${more}`;
}

function rowOf(raw: Raw): Row {
  let value: unknown;
  try {
    value = JSON.parse(raw.body);
  } catch {
    throw unexpected(raw.url, `status ${raw.status} with a body that is not JSON`);
  }
  return new Row(value, raw.url);
}

function answerOf(row: Row): Answer {
  return {
    allowed: row.get("allowed", "boolean"),
    policy: row.optional("policy", "string"),
    limit: row.optional("limit", "number"),
    remaining: row.optional("remaining", "number"),
    retryAfterMs: row.optional("retry_after_ms", "number"),
    resetAfterMs: row.optional("reset_after_ms", "number"),
    decided: row.get("decided", "string"),
    limits: row.list("limits").map(lineOf),
    noRoom: row.optional("no_room", "boolean") ?? false,
  };
}

function lineOf(row: Row): Line {
  return {
    policy: row.optional("policy", "string"),
    limit: row.get("limit", "number"),
    windowMs: row.get("window_ms", "number"),
    algorithm: row.get("algorithm", "string"),
    remaining: row.optional("remaining", "number"),
    allowed: row.get("allowed", "boolean"),
    retryAfterMs: row.optional("retry_after_ms", "number"),
    mode: row.optional("mode", "string"),
    decided: row.optional("decided", "string") ?? "exact",
  };
}

function problemOf(row: Row): Problem {
  return {
    type: row.get("type", "string"),
    title: row.get("title", "string"),
    status: row.get("status", "number"),
    detail: row.get("detail", "string"),
    field: row.optional("field", "string"),
    violatedPolicies: row.texts("violated-policies"),
  };
}

interface Kinds {
  string: string;
  number: number;
  boolean: boolean;
}

/** A JSON object whose members are checked when they are read. */
class Row {
  readonly #members: Readonly<Record<string, unknown>>;
  readonly #url: string;

  constructor(value: unknown, url: string) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw unexpected(url, "expected a JSON object");
    }
    this.#url = url;
    this.#members = value as Record<string, unknown>;
  }

  has(name: string): boolean {
    return Object.hasOwn(this.#members, name);
  }

  get<K extends keyof Kinds>(name: string, kind: K): Kinds[K] {
    const value = this.optional(name, kind);
    if (value === null) throw unexpected(this.#url, `\`${name}\` is missing from the answer`);
    return value;
  }

  optional<K extends keyof Kinds>(name: string, kind: K): Kinds[K] | null {
    const value = this.has(name) ? this.#members[name] : null;
    if (value !== null && typeof value !== kind) {
      throw unexpected(this.#url, `\`${name}\` of the answer is not of type ${kind}`);
    }
    return value as Kinds[K] | null;
  }

  list(name: string): Row[] {
    const value = this.#members[name];
    if (!Array.isArray(value)) throw unexpected(this.#url, `\`${name}\` of the answer is not a list`);
    return value.map((member) => new Row(member, this.#url));
  }

  texts(name: string): string[] {
    const value = this.#members[name];
    return Array.isArray(value) ? value.map(String) : [];
  }
}
