// Retries for `fetch`, and for other functions that return a similar response.

import { rejectUnknown, requireType } from "./errors.js";
import { isFailedConnection, isFetchFailure, wasNotSent } from "./failures.js";
import { type Fields, advise } from "./fields.js";
import { IDEMPOTENCY_KEY, type Course, Retrier, requireRetrier } from "./retry.js";
import { sleep } from "./sleep.js";

/** The part of a response that `retry` needs. */
export interface ResponseLike {
  readonly status: number;
  readonly headers: Fields;
  /** Whether it is the response to a redirect. */
  readonly redirected?: boolean;
}

export interface RetryOptions {
  /** The method of the request. Default: `GET`. */
  method?: string;
  /** Identifies the server for pacing. */
  origin?: string;
  /** Default: one that all calls of the program share. */
  retrier?: Retrier;
  /**
   * Whether to retry after an error. Default: after a failed connection or a timeout, which is recognised by the
   * `code` of the error or of its causes, such as `ECONNREFUSED`, or by the messages of `fetch` in browsers.
   */
  failures?: (error: unknown) => boolean;
  /** Cancels the waits. */
  signal?: AbortSignal | null;
  /** The function to wait with. Default: a timer. */
  sleep?: (ms: number, signal?: AbortSignal | null) => Promise<void>;
}

const shared = new Retrier();

/**
 * Calls `send` until its response is a success, or a failure that is not retried.
 *
 * `send` gets header fields to add to the request: the idempotency key of a method that is not idempotent. After a
 * failed connection, such a method is not repeated, because the server may have processed it.
 */
export async function retry<R extends ResponseLike>(
  send: (headers: Readonly<Record<string, string>>) => Promise<R>,
  options: RetryOptions = {},
): Promise<R> {
  rejectUnknown("options", options, ["method", "origin", "retrier", "failures", "signal", "sleep"]);
  const { method = "GET", retrier = shared } = options;
  requireRetrier(retrier);
  const course = retrier.begin(method);
  return run(course, { ...options, retrier }, () => send(course.key === null ? {} : { [IDEMPOTENCY_KEY]: course.key }));
}

/** Returns a `fetch` that retries. */
export function retryFetch(retrier: Retrier = new Retrier(), inner: typeof fetch = fetch): typeof fetch {
  requireRetrier(retrier);
  requireType("inner", inner, "function");
  return async (input, init) => {
    const request = input instanceof Request ? input : null;
    const url = new URL(request?.url ?? String(input), globalThis.location?.href);
    const method = init?.method ?? request?.method ?? "GET";
    const signal = init?.signal ?? request?.signal ?? null;
    const headers = new Headers(init?.headers ?? request?.headers);
    const course = retrier.begin(method, headers.get(IDEMPOTENCY_KEY));
    if (course.key !== null) headers.set(IDEMPOTENCY_KEY, course.key);
    const send = () => inner(input, { ...init, headers });
    const once = !canBeSentAgain(request, init);
    // After a redirect, the failed connection may be another one than that of the request.
    const isOneRequest = (init?.redirect ?? request?.redirect ?? "follow") !== "follow";
    const options = { retrier, signal, origin: url.origin, once, isOneRequest, failures: isFetchFailure };
    return run(course, options, send);
  };
}

interface Running extends RetryOptions {
  retrier: Retrier;
  /** Whether the body can be sent only once. */
  once?: boolean;
  /** Whether `send` certainly sends a single request. */
  isOneRequest?: boolean;
}

async function run<R extends ResponseLike>(course: Course, options: Running, send: () => Promise<R>): Promise<R> {
  const { retrier, origin = "", failures = isFailedConnection, signal = null, once = false } = options;
  const wait = options.sleep ?? sleep;
  for (;;) {
    await wait(retrier.pacer.pauseMs(origin), signal);
    const outcome = await send().then(
      (response) => ({ response }),
      (error: unknown) => ({ error }),
    );
    if ("response" in outcome) {
      const { status, headers, redirected = false } = outcome.response;
      if (status < 400) retrier.pacer.observe(origin, advise(status, headers).paceMs);
      const delay = once ? null : course.after(status, headers, { redirected });
      if (delay === null) return outcome.response;
      await discard(outcome.response);
      await wait(delay, signal);
    } else {
      const again = !once && !signal?.aborted && failures(outcome.error);
      const delay = again ? course.afterFailure({ wasSent: !options.isOneRequest || !wasNotSent(outcome.error) }) : null;
      if (delay === null) throw outcome.error;
      await wait(delay, signal);
    }
  }
}

/** Returns whether the body can be sent twice. A stream cannot. */
function canBeSentAgain(request: Request | null, init: RequestInit | undefined): boolean {
  const body: unknown = init?.body ?? null;
  // Some browsers do not expose the body of a Request; a GET has none.
  if (body === null) return request === null || request.body === null || ["GET", "HEAD"].includes(request.method);
  if (typeof body === "string") return true;
  const kinds = [ArrayBuffer, Blob, FormData, URLSearchParams];
  return ArrayBuffer.isView(body) || kinds.some((kind) => body instanceof kind);
}

/** Frees the connection of a response that is discarded. */
async function discard(response: ResponseLike): Promise<void> {
  if (response instanceof Response) await response.body?.cancel().catch(() => {});
}
