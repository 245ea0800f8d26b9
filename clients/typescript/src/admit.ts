// Asking on behalf of a request that is waiting: for middleware.
//
// What tidegate will not read (an address that is none, attributes of more than 64 KiB) is
// refused whatever `onFailure` says: if it were let through, a client could get past its
// limits by sending headers that are long enough.

import type { Client } from "./client.js";
import { Rejected, TidegateError } from "./errors.js";
import { type Refusal, rateLimitFields, refusal, unavailable, unreadable } from "./refusals.js";
import type { WaitingCheck } from "./wire.js";

/** What becomes of a request. */
export interface Passage {
  /** The response to send instead, or `null` if the request may go on. */
  readonly refusal: Refusal | null;
  /** What the response of a request that goes on should carry. */
  readonly fields: readonly (readonly [string, string])[];
  /** Why nobody could be asked, or `null`: to be logged, for a limit that fails open fails silently. */
  readonly failure: TidegateError | null;
}

/** Asks, and says what to do. While tidegate does not answer within the client's time, `onFailure` decides. */
export async function admit(client: Client, check: WaitingCheck, onFailure: "allow" | "deny"): Promise<Passage> {
  try {
    const answer = await client.check(check);
    if (!answer.allowed) return { refusal: refusal(answer), fields: [], failure: null };
    return { refusal: null, fields: rateLimitFields(answer), failure: null };
  } catch (failure) {
    if (!(failure instanceof TidegateError)) throw failure;
    if (failure instanceof Rejected && [400, 413].includes(failure.problem.status)) {
      return { refusal: unreadable(), fields: [], failure };
    }
    return { refusal: onFailure === "deny" ? unavailable() : null, fields: [], failure };
  }
}
