// Retries that respect a limiter.
//
// The naive approach, "on 429 sleep and try again", fails in four ways: clients that were
// denied together retry together; a server that is down gets many times its load; a POST is
// processed twice; and a header can make a program sleep for a year. Instead:
//
// - the wait that the server requests is kept, with full jitter *added*, because clients that
//   were denied together received the same time;
// - a wait beyond `maxWaitMs` ends the retries and is not shortened, because an early retry is
//   denied again;
// - a `Budget` that all requests share bounds retries to a fraction of the traffic;
// - a method that is not idempotent carries a key, and is repeated only if the server did not
//   process the request, or is known to honour keys;
// - a `Pacer` slows down *before* the limit is reached, when little of it remains.
//
// `Course` decides and does not wait, so that it can be tested without a clock.

import { kindOf, rejectUnknown, requireType } from "./errors.js";
import { type Fields, advise } from "./fields.js";
import { Pacer } from "./pacer.js";

export const IDEMPOTENCY_KEY = "Idempotency-Key";
const IDEMPOTENT = new Set(["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"]);
const WORTH_A_RETRY = [408, 425, 429, 502, 503, 504];

/** The number of retries, and the waits before them. */
export interface BackoffOptions {
  /** The largest number of retries. Default: 4. */
  retries?: number;
  /** The largest jitter before the first retry. It doubles with each retry. Default: 100. */
  baseMs?: number;
  /** The largest jitter before any retry. Default: 10,000. */
  capMs?: number;
  /** The longest requested wait that is accepted. A longer one ends the retries. Default: 60,000. */
  maxWaitMs?: number;
  /** The longest pause before a request when little of the limit remains. Default: 1,000. */
  maxPauseMs?: number;
  /** The time after the first attempt after which no retry begins. Default: no bound. */
  deadlineMs?: number;
}

const DEFAULTS: Readonly<Required<BackoffOptions>> = {
  retries: 4,
  baseMs: 100,
  capMs: 10_000,
  maxWaitMs: 60_000,
  maxPauseMs: 1000,
  deadlineMs: Infinity,
};

export class Backoff {
  readonly options: Readonly<Required<BackoffOptions>>;

  constructor(options: BackoffOptions = {}) {
    rejectUnknown("backoff", options, Object.keys(DEFAULTS));
    this.options = { ...DEFAULTS, ...options };
    for (const [name, value] of Object.entries(this.options)) {
      requireType(name, value, "number");
      // Timers accept at most 2^31 ms.
      const most = name === "deadlineMs" ? Infinity : 2 ** 30;
      if (!(value >= 0 && value <= most)) throw new RangeError(`${name} must be between 0 and ${most}, not ${value}`);
    }
  }

  /**
   * Returns the wait before retry number `retry`, counted from 0, or `null` to give up. `waitMs` is the
   * wait that the server requests, as `advise` reads it.
   */
  delayMs(retry: number, waitMs: number | null = null, chance: () => number = Math.random): number | null {
    const { retries, baseMs, capMs, maxWaitMs } = this.options;
    const asked = waitMs ?? 0;
    if (retry >= retries || asked > maxWaitMs) return null;
    // 2^30 times any sensible base exceeds every cap.
    return asked + chance() * Math.min(capMs, baseMs * 2 ** Math.min(retry, 30));
  }
}

/**
 * Bounds retries to a fraction of all requests, so that many callers do not amplify an outage.
 *
 * Every request adds `ratio`, every retry takes 1. The balance starts at `reserve` and never exceeds it, so
 * that quiet times do not pay for many retries later.
 */
export class Budget {
  readonly #ratio: number;
  readonly #reserve: number;
  #left: number;

  constructor(options: { ratio?: number; reserve?: number } = {}) {
    rejectUnknown("budget", options, ["ratio", "reserve"]);
    const { ratio = 0.2, reserve = 10 } = options;
    requireType("ratio", ratio, "number");
    requireType("reserve", reserve, "number");
    if (!(ratio >= 0 && ratio <= 1)) throw new RangeError(`ratio must be between 0 and 1, not ${ratio}`);
    if (!(reserve >= 1 && reserve < Infinity)) throw new RangeError(`reserve must be 1 or more, not ${reserve}`);
    this.#ratio = ratio;
    this.#reserve = reserve;
    this.#left = reserve;
  }

  /** Records a request that is not a retry. */
  deposit(): void {
    this.#left = Math.min(this.#left + this.#ratio, this.#reserve);
  }

  /** Pays for a retry. Returns whether the balance was sufficient. */
  withdraw(): boolean {
    if (this.#left < 1) return false;
    this.#left -= 1;
    return true;
  }
}

export interface RetrierOptions {
  backoff?: Backoff;
  budget?: Budget;
  /** The statuses that are retried. Default: 408, 425, 429, 502, 503 and 504. */
  statuses?: Iterable<number>;
  /**
   * Whether the server processes requests with the same `Idempotency-Key` once. A POST or PATCH is then
   * repeated even if the first may have been processed.
   */
  keysHonoured?: boolean;
}

/** The state that the requests of a program share. Create one and use it for all of them. */
export class Retrier {
  readonly backoff: Backoff;
  readonly budget: Budget;
  readonly statuses: ReadonlySet<number>;
  readonly keysHonoured: boolean;
  readonly pacer: Pacer;

  constructor(options: RetrierOptions = {}) {
    rejectUnknown("retrier", options, ["backoff", "budget", "statuses", "keysHonoured"]);
    const { backoff = new Backoff(), budget = new Budget(), keysHonoured = false } = options;
    // Any object that has the members is accepted, also of another copy of the package.
    requireMember("backoff", backoff, "delayMs", "a Backoff, such as new Backoff({ retries: 3 })");
    requireMember("budget", budget, "withdraw", "a Budget, such as new Budget({ ratio: 0.1 })");
    requireType("keysHonoured", keysHonoured, "boolean");
    this.backoff = backoff;
    this.budget = budget;
    this.statuses = new Set(options.statuses ?? WORTH_A_RETRY);
    this.keysHonoured = keysHonoured;
    this.pacer = new Pacer(this.backoff.options.maxPauseMs);
  }

  /** Begins a request. `key` is its idempotency key, if it has one already. */
  begin(method: string, key: string | null = null): Course {
    this.budget.deposit();
    return new Course(this, method, key);
  }
}

/**
 * Throws a `TypeError` for another value, such as a `Backoff`, which would fail at the first request. Any object
 * that has the methods is accepted, also of another copy of the package.
 */
export function requireRetrier(value: unknown): void {
  const { begin, pacer } = (value ?? {}) as Partial<Retrier>;
  if (typeof begin === "function" && typeof pacer === "object") return;
  throw new TypeError("retrier must be a Retrier, such as new Retrier({ backoff: new Backoff({ retries: 3 }) })");
}

function requireMember(name: string, value: unknown, member: string, what: string): void {
  if (typeof ((value ?? {}) as Record<string, unknown>)[member] === "function") return;
  throw new TypeError(`${name} must be ${what}, not ${kindOf(value)}`);
}

/** One request and its retries. It decides; its caller waits. */
export class Course {
  /** The key to send with every attempt, if any. */
  readonly key: string | null;
  readonly #retrier: Retrier;
  readonly #repeatable: boolean;
  readonly #began = performance.now();
  #retry = 0;

  constructor(retrier: Retrier, method: string, key: string | null) {
    const idempotent = IDEMPOTENT.has(method.toUpperCase());
    this.#retrier = retrier;
    // A caller that sets the key knows that the server honours it.
    this.#repeatable = idempotent || key !== null || retrier.keysHonoured;
    this.key = key ?? (idempotent ? null : uuid());
  }

  /** Returns the wait before the request is sent again, or `null` if this response is the result. */
  after(status: number, fields: Fields, { redirected }: { redirected: boolean }): number | null {
    if (!this.#retrier.statuses.has(status)) return null;
    const { waitMs } = advise(status, fields);
    // A limiter, or a server that sends a time to retry, did not process the request. A server that redirects did.
    const refused = !redirected && (status === 429 || (status === 503 && waitMs !== null));
    return refused || this.#repeatable ? this.#next(waitMs) : null;
  }

  /** Returns the wait after a failure without a response. `wasSent`: the server may have received the request. */
  afterFailure({ wasSent }: { wasSent: boolean }): number | null {
    return this.#repeatable || !wasSent ? this.#next(null) : null;
  }

  #next(waitMs: number | null): number | null {
    const { backoff, budget } = this.#retrier;
    const delay = backoff.delayMs(this.#retry, waitMs);
    if (delay === null) return null;
    if (performance.now() - this.#began + delay > backoff.options.deadlineMs) return null;
    if (!budget.withdraw()) return null;
    this.#retry += 1;
    return delay;
  }
}

/** `crypto.randomUUID` is unavailable on pages that were not loaded over https. */
function uuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
