// A permit, whose lease is renewed while it is held.
//
// A lease is renewed when a third of it has passed. A failed renewal is repeated soon, because
// the server may be restarting. When the lease has ended by the caller's clock, another client
// may hold the permit: a timer aborts `lost` then, also while a renewal has no answer yet.
//
// The server's lease begins between the sending of a request and its answer, so it is counted
// from the sending.

import type { Answer } from "./answers.js";
import { PermitLost, TidegateError } from "./errors.js";
import { sleep } from "./sleep.js";
import { type Grant, type Raw, checkedTtl, decodeRelease, decodeRenewal } from "./wire.js";

const RENEWALS_PER_LEASE = 3;
const TRIES_PER_LEASE = 12;
/** The shortest wait, so that renewals of a very short lease are not a load. */
const MIN_WAIT_MS = 10;
/** The longest time that timers accept. */
const MAX_WAIT_MS = 2 ** 31 - 1;

type Send = (method: string, path: string, body?: object) => Promise<Raw>;

/** A held permit under a concurrency limit. */
export class Permit {
  readonly allowed = true;
  readonly id: string;
  readonly answer: Answer;
  readonly #send: Send;
  readonly #lost = new AbortController();
  readonly #done = new AbortController();
  #inHold = false;
  #ttlMs = 0;
  #sentAt = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Called by `Client.permit`. `sentAt` is the time at which the request was sent. */
  constructor(grant: Grant, sentAt: number, send: Send) {
    this.id = grant.id;
    this.answer = grant.answer;
    this.#send = send;
    this.#start(grant.ttlMs, sentAt);
  }

  /**
   * Aborts when others may hold the permit: its lease has ended, or `release` was called. Observe it during long
   * work. The end of `hold` gives the permit back without aborting it, because the result of the work may depend
   * on it, such as a response whose body is not read yet.
   */
  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  /**
   * Renews the permit while `work` runs, and gives it back at the end. If that fails, the lease expires. Throws
   * without a call of `work`: `PermitLost` if the permit was given back before, or its lease has ended, and an
   * `Error` while another call of `hold` runs.
   */
  async hold<T>(work: (lost: AbortSignal) => T | Promise<T>): Promise<T> {
    if (this.#done.signal.aborted) throw notHeld("the permit was given back");
    this.#abortAtEnd();
    if (this.lost.aborted) throw notHeld("the lease of the permit has ended");
    // The first call to end would give the permit back while the other one goes on.
    if (this.#inHold) throw new Error("the permit is already held by another call of hold; acquire a permit for each call");
    this.#inHold = true;
    const renewals = this.#renewUntilDone();
    try {
      return await work(this.lost);
    } finally {
      this.#end();
      // Waits for a renewal in progress, which would otherwise follow the release.
      await renewals;
      await this.#giveBack().catch(onlyTidegateErrors);
    }
  }

  /** Renews the lease and returns its length. Throws `PermitLost` if it has ended. */
  async renew(ttlMs?: number): Promise<number> {
    const body = ttlMs === undefined ? undefined : { ttl_ms: checkedTtl(ttlMs) };
    const sentAt = performance.now();
    try {
      this.#start(decodeRenewal(await this.#send("PUT", `/v1/permits/${this.id}`, body)), sentAt);
      return this.#ttlMs;
    } catch (error) {
      if (error instanceof PermitLost) this.#lost.abort(error);
      throw error;
    }
  }

  /**
   * Gives the permit back and aborts `lost`. Throws `PermitLost` if the lease had ended or the permit was given
   * back before.
   */
  async release(): Promise<void> {
    // Before the request, because the server may act on it and the answer not arrive.
    this.#lost.abort(notHeld("the permit was given back"));
    await this.#giveBack();
  }

  async #giveBack(): Promise<void> {
    this.#end();
    decodeRelease(await this.#send("DELETE", `/v1/permits/${this.id}`));
  }

  #start(ttlMs: number, sentAt: number): void {
    this.#ttlMs = ttlMs;
    this.#sentAt = sentAt;
    this.#abortAtEnd();
  }

  /** Aborts `lost` if the lease has ended, or else when it ends. */
  #abortAtEnd(): void {
    clearTimeout(this.#timer);
    if (this.#done.signal.aborted) return;
    const leftMs = this.#sentAt + this.#ttlMs - performance.now();
    if (leftMs <= 0) return this.#lost.abort(notHeld("the lease of the permit has ended"));
    this.#timer = setTimeout(() => this.#abortAtEnd(), Math.min(leftMs, MAX_WAIT_MS));
    // A permit that is not held must not keep a program running. In browsers, timers have no `unref`.
    (this.#timer as { unref?: () => void }).unref?.();
  }

  #end(): void {
    this.#done.abort();
    clearTimeout(this.#timer);
  }

  async #renewUntilDone(): Promise<void> {
    let waitMs = this.#untilRenewalMs();
    for (;;) {
      await sleep(Math.min(Math.max(waitMs, MIN_WAIT_MS), MAX_WAIT_MS), this.#done.signal).catch(() => {});
      if (this.#done.signal.aborted || this.lost.aborted) return;
      try {
        await this.renew();
        waitMs = this.#untilRenewalMs();
      } catch (error) {
        onlyTidegateErrors(error);
        waitMs = this.#ttlMs / TRIES_PER_LEASE;
      }
    }
  }

  #untilRenewalMs(): number {
    return this.#sentAt + this.#ttlMs / RENEWALS_PER_LEASE - performance.now();
  }
}

/** The error for a permit that the client knows to be no longer held, as the server would report it. */
function notHeld(detail: string): PermitLost {
  return new PermitLost({ type: "about:blank", title: "Not Found", status: 404, detail, field: null, violatedPolicies: [] }, null);
}

function onlyTidegateErrors(error: unknown): void {
  if (!(error instanceof TidegateError)) throw error;
}
