// Checks a request on behalf of middleware.
//
// A request that tidegate rejects as invalid (a malformed address, attributes of more than
// 64 KiB) is refused whatever `onFailure` is: otherwise a client could bypass its limits by
// sending long headers.

import type { Client } from "./client.js";
import { Rejected, TidegateError } from "./errors.js";
import { type Refusal, rateLimitFields, refusal, unavailable, unreadable } from "./refusals.js";
import type { WaitingCheck } from "./wire.js";

/** The decision about a request. */
export interface Passage {
  /** The response to send instead, or `null` if the request may go on. */
  readonly refusal: Refusal | null;
  /** Header fields for the response of a request that may go on. */
  readonly fields: readonly (readonly [string, string])[];
  /** Why there was no decision, or `null`. Log it: a limit that fails open is otherwise silent. */
  readonly failure: TidegateError | null;
}

/**
 * Checks a request. If tidegate makes no decision (no answer in time, or an error such as a wrong token or an
 * unknown policy), `onFailure` decides. A check that tidegate rejects as invalid or too long (400, 413) is
 * refused with either value. The time is the client's `timeoutMs`, plus the `maxWaitMs` of the check.
 */
export async function admit(client: Client, check: WaitingCheck, onFailure: "allow" | "deny"): Promise<Passage> {
  // JavaScript does not check the type. A misspelt value would otherwise fail open at the first failure.
  if (onFailure !== "allow" && onFailure !== "deny") {
    throw new RangeError(`onFailure must be "allow" or "deny", not ${JSON.stringify(onFailure)}`);
  }
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
