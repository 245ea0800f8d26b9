// The wire format of requests and answers.

import type { Answer, Denied, Line, Problem } from "./answers.js";
import { PermitLost, Rejected, Unavailable, UnexpectedAnswer, rejectUnknown, requireType } from "./errors.js";
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

const QUESTION = ["policy", "key", "attributes", "limits", "cost"];
const CHECK = [...QUESTION, "id", "force", "maxWaitMs"];
const PERMIT = [...QUESTION, "ttlMs"];
const ATTRIBUTES = ["method", "path", "query", "host", "clientIp", "headers", "domain", "descriptors"];

/** Returns the body of a check with the API's names. JSON leaves out members that are `undefined`. */
export function encodeCheck(check: WaitingCheck): object {
  rejectUnknown("check", check, CHECK);
  const { maxWaitMs, ...same }: AnyQuestion = check;
  requireWhole("cost", same.cost);
  requireWhole("maxWaitMs", maxWaitMs);
  return { ...same, attributes: encodeAttributes(same.attributes), max_wait_ms: maxWaitMs };
}

/** Returns the body of a request for a permit with the API's names. */
export function encodePermit(request: PermitRequest): object {
  rejectUnknown("permit", request, PERMIT);
  const { ttlMs, ...same }: AnyQuestion = request;
  requireWhole("cost", same.cost);
  requireWhole("ttlMs", ttlMs);
  return { ...same, attributes: encodeAttributes(same.attributes), ttl_ms: ttlMs };
}

/** Rejects a number that JSON cannot express (it would become `null`, the default) or the server does not accept. */
export function requireWhole(name: string, value: number | undefined): void {
  requireType(name, value, "number");
  if (value !== undefined && !Number.isSafeInteger(value)) throw new RangeError(`${name} must be a whole number, not ${value}`);
}

interface AnyQuestion {
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
    return unexpected(raw.url, `status ${raw.status} without a problem document`);
  }
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
