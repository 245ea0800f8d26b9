// Retries that respect a limiter.
//
// The naive way, "on 429 sleep and try again", breaks in four places: everybody who was
// denied together comes back together; a server that is down gets many times its load;
// a POST is done twice; and a header can make a program sleep for a year. So here
//
// - the wait the server asks for is kept, with full jitter *on top*: those who were denied
//   at once were told the same time;
// - a wait beyond `maxWaitMs` ends the retrying, it is not cut short: who comes early is denied;
// - a `Budget` that all requests share lets retries be a fraction of the traffic, no more;
// - a method that is not idempotent carries a key, and is sent again only when the server
//   says that it did not take the request, unless it is known to honour keys;
// - a `Pacer` slows down *before* the limit, when little of it remains.
//
// `Course` decides and does not wait, so that it can be tested without a clock.

import { type Fields, advise } from "./fields.js";
import { Pacer } from "./pacer.js";

export const IDEMPOTENCY_KEY = "Idempotency-Key";
const IDEMPOTENT = new Set(["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"]);
const WORTH_A_RETRY = [408, 425, 429, 502, 503, 504];

/** How long to wait before a retry, and how often to try. */
export interface BackoffOptions {
  /** 4 unless given. */
  retries?: number;
  /** The jitter before the first retry is between 0 and this, 100 unless given; it doubles with each. */
  baseMs?: number;
  /** The most it doubles to, 10,000 unless given. */
  capMs?: number;
  /** A server that asks for longer is not asked again. 60,000 unless given. */
  maxWaitMs?: number;
  /** The longest pause before a request because little remains. 1,000 unless given. */
  maxPauseMs?: number;
  /** No retry begins later than so long after the first attempt. No bound unless given. */
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
    this.options = { ...DEFAULTS, ...options };
    for (const [name, value] of Object.entries(this.options)) {
      // Timers take no more than 2^31 ms.
      const most = name === "deadlineMs" ? Infinity : 2 ** 30;
      if (!(value >= 0 && value <= most)) throw new RangeError(`${name} must be between 0 and ${most}, not ${value}`);
    }
  }

  /**
   * The wait before retry number `retry`, counted from 0; `null`: give up. `waitMs` is what the server
   * asked for, as `advise` reads it.
   */
  delayMs(retry: number, waitMs: number | null = null, chance: () => number = Math.random): number | null {
    const { retries, baseMs, capMs, maxWaitMs } = this.options;
    const asked = waitMs ?? 0;
    if (retry >= retries || asked > maxWaitMs) return null;
    // 2^30 times any base is beyond every cap.
    return asked + chance() * Math.min(capMs, baseMs * 2 ** Math.min(retry, 30));
  }
}

/**
 * Retries as a part of all requests, so that many callers do not multiply an outage.
 *
 * Every request puts `ratio` in, every retry takes 1 out. It starts with `reserve`, and holds no more than
 * that either, so that a quiet hour cannot be saved up for a storm.
 */
export class Budget {
  readonly #ratio: number;
  readonly #reserve: number;
  #left: number;

  constructor({ ratio = 0.2, reserve = 10 }: { ratio?: number; reserve?: number } = {}) {
    if (!(ratio >= 0 && ratio <= 1)) throw new RangeError(`ratio must be between 0 and 1, not ${ratio}`);
    if (!(reserve >= 1 && reserve < Infinity)) throw new RangeError(`reserve must be 1 or more, not ${reserve}`);
    this.#ratio = ratio;
    this.#reserve = reserve;
    this.#left = reserve;
  }

  /** A request is made for the first time. */
  deposit(): void {
    this.#left = Math.min(this.#left + this.#ratio, this.#reserve);
  }

  /** Whether it may be made again. */
  withdraw(): boolean {
    if (this.#left < 1) return false;
    this.#left -= 1;
    return true;
  }
}

export interface RetrierOptions {
  backoff?: Backoff;
  budget?: Budget;
  /** Which are worth a retry: 408, 425, 429, 502, 503 and 504 unless given. */
  statuses?: Iterable<number>;
  /**
   * Whether the server does a request with the same `Idempotency-Key` once: then a POST or PATCH is sent
   * again also if nobody knows whether the first was taken.
   */
  keysHonoured?: boolean;
}

/** What the requests of a program share: make one, and use it for all of them. */
export class Retrier {
  readonly backoff: Backoff;
  readonly budget: Budget;
  readonly statuses: ReadonlySet<number>;
  readonly keysHonoured: boolean;
  readonly pacer: Pacer;

  constructor(options: RetrierOptions = {}) {
    this.backoff = options.backoff ?? new Backoff();
    this.budget = options.budget ?? new Budget();
    this.statuses = new Set(options.statuses ?? WORTH_A_RETRY);
    this.keysHonoured = options.keysHonoured ?? false;
    this.pacer = new Pacer(this.backoff.options.maxPauseMs);
  }

  /** A request with all its retries. `key` is the idempotency key it has already. */
  begin(method: string, key: string | null = null): Course {
    this.budget.deposit();
    return new Course(this, method, key);
  }
}

/** One request through its retries. Decides, and leaves the waiting to its caller. */
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
    // Who sets a key himself knows that the server honours it.
    this.#repeatable = idempotent || key !== null || retrier.keysHonoured;
    this.key = key ?? (idempotent ? null : uuid());
  }

  /** What to wait before the request is sent again; `null`: this response is the last. */
  after(status: number, fields: Fields): number | null {
    if (!this.#retrier.statuses.has(status)) return null;
    const { waitMs } = advise(status, fields);
    // A limiter, or a server that says when to come back, did not take the request.
    const refused = status === 429 || (status === 503 && waitMs !== null);
    return refused || this.#repeatable ? this.#next(waitMs) : null;
  }

  /** The same if no response came. `wasSent`: the server may have seen the request. */
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

/** `crypto.randomUUID` is missing from pages that were not loaded by https. */
function uuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
