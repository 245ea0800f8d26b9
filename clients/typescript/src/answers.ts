// The answers of the server, as plain data.

/** How a decision was made: by the store, or without it while a shared store is unavailable. */
export type Decided = "exact" | "local" | "failed-open" | "failed-closed";

/** The answer of one limit. */
export interface Line {
  readonly policy: string | null;
  readonly limit: number;
  /** The window; for `concurrency`, the lease. */
  readonly windowMs: number;
  readonly algorithm: string;
  readonly remaining: number | null;
  readonly allowed: boolean;
  readonly retryAfterMs: number | null;
  /** `observe` if the limit is not enforced. */
  readonly mode: string | null;
  readonly decided: Decided | (string & {});
}

/**
 * A decision. `policy`, `limit`, `remaining` and `resetAfterMs` describe one limit: the one that denied with
 * the longest wait, or the one with the least remaining.
 */
export interface Answer {
  readonly allowed: boolean;
  /** `null` if no policy applied, or for limits that the caller gave. */
  readonly policy: string | null;
  readonly limit: number | null;
  /** `null` if unknown, because the store failed. */
  readonly remaining: number | null;
  /** 0 if allowed, `null` if this cost can never pass. */
  readonly retryAfterMs: number | null;
  readonly resetAfterMs: number | null;
  readonly decided: Decided | (string & {});
  readonly limits: readonly Line[];
  /** Whether it was denied only because the store is full. */
  readonly noRoom: boolean;
}

/** A problem document (RFC 9457). */
export interface Problem {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly field: string | null;
  readonly violatedPolicies: readonly string[];
}

/** A denied permit. */
export interface Denied {
  readonly allowed: false;
  readonly problem: Problem;
  /** `null` if this cost can never pass. */
  readonly retryAfterMs: number | null;
  /** `Retry-After` and the rate limit fields of the response, for your own response. */
  readonly fields: readonly (readonly [string, string])[];
}
