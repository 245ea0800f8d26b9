// What the server says, as plain data.

/** How a decision was made: by the store, or, while a shared store fails, in another way. */
export type Decided = "exact" | "local" | "failed-open" | "failed-closed";

/** What one limit said. */
export interface Line {
  readonly policy: string | null;
  readonly limit: number;
  /** The lease, for `concurrency`. */
  readonly windowMs: number;
  readonly algorithm: string;
  readonly remaining: number | null;
  readonly allowed: boolean;
  readonly retryAfterMs: number | null;
  /** `observe` if the limit is only watched and had no say. */
  readonly mode: string | null;
  readonly decided: Decided | (string & {});
}

/**
 * A decision. `policy`, `limit`, `remaining` and `resetAfterMs` speak of one limit: the denying one with
 * the longest wait, or the one with the least remaining.
 */
export interface Answer {
  readonly allowed: boolean;
  /** `null` if no policy applied, or for limits of the caller's own. */
  readonly policy: string | null;
  readonly limit: number | null;
  /** `null` where nobody knows, because the store failed. */
  readonly remaining: number | null;
  /** 0 if allowed, `null` if this cost can never pass. */
  readonly retryAfterMs: number | null;
  readonly resetAfterMs: number | null;
  readonly decided: Decided | (string & {});
  readonly limits: readonly Line[];
  /** The store is full, and that alone is why. */
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

/** No place is free: a permit that was not given. */
export interface Denied {
  readonly allowed: false;
  readonly problem: Problem;
  /** `null` if this cost can never pass. */
  readonly retryAfterMs: number | null;
  /** `Retry-After` and the rate limit fields, to be sent on. */
  readonly fields: readonly (readonly [string, string])[];
}
