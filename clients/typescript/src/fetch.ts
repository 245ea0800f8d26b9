// Retries for `fetch`, and for anything that gives a response like its.

import { type Fields, advise } from "./fields.js";
import { IDEMPOTENCY_KEY, type Course, Retrier } from "./retry.js";
import { sleep } from "./sleep.js";

/** What `retry` has to know of a response. */
export interface ResponseLike {
  readonly status: number;
  readonly headers: Fields;
}

export interface RetryOptions {
  /** `GET` unless given. */
  method?: string;
  /** Names the server, for its pace. */
  origin?: string;
  /** Without one, all calls of the program share one. */
  retrier?: Retrier;
  /** Which failures to try again after: `TypeError`, as `fetch` throws it, unless given. */
  failures?: (error: unknown) => boolean;
  /** Ends the waiting. */
  signal?: AbortSignal | null;
  /** Instead of a timer. */
  sleep?: (ms: number, signal?: AbortSignal | null) => Promise<void>;
}

const shared = new Retrier();

/**
 * Calls `send` until its response is worth returning: a success, or a failure that no retry would mend.
 *
 * `send` gets header fields to add to the request: the idempotency key of a method that is not idempotent.
 */
export async function retry<R extends ResponseLike>(
  send: (headers: Readonly<Record<string, string>>) => Promise<R>,
  options: RetryOptions = {},
): Promise<R> {
  const { method = "GET", retrier = shared } = options;
  const course = retrier.begin(method);
  return run(course, { ...options, retrier }, () => send(course.key === null ? {} : { [IDEMPOTENCY_KEY]: course.key }));
}

/** A `fetch` that retries. */
export function retryFetch(retrier: Retrier = new Retrier(), inner: typeof fetch = fetch): typeof fetch {
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
    return run(course, { retrier, signal, origin: url.origin, once }, send);
  };
}

interface Running extends RetryOptions {
  retrier: Retrier;
  /** What is sent is gone then. */
  once?: boolean;
}

async function run<R extends ResponseLike>(course: Course, options: Running, send: () => Promise<R>): Promise<R> {
  const { retrier, origin = "", failures = isNetworkFailure, signal = null, once = false } = options;
  const wait = options.sleep ?? sleep;
  for (;;) {
    await wait(retrier.pacer.pauseMs(origin), signal);
    const outcome = await send().then(
      (response) => ({ response }),
      (error: unknown) => ({ error }),
    );
    if ("response" in outcome) {
      const { status, headers } = outcome.response;
      if (status < 400) retrier.pacer.observe(origin, advise(status, headers).paceMs);
      const delay = once ? null : course.after(status, headers);
      if (delay === null) return outcome.response;
      await discard(outcome.response);
      await wait(delay, signal);
    } else {
      const again = !once && !signal?.aborted && failures(outcome.error);
      const delay = again ? course.afterFailure({ wasSent: wasSent(outcome.error) }) : null;
      if (delay === null) throw outcome.error;
      await wait(delay, signal);
    }
  }
}

/** A body that is a stream is gone once it was sent. */
function canBeSentAgain(request: Request | null, init: RequestInit | undefined): boolean {
  const body: unknown = init?.body ?? null;
  // Not every browser says whether a Request has a body; a GET has none.
  if (body === null) return request === null || request.body === null || ["GET", "HEAD"].includes(request.method);
  if (typeof body === "string") return true;
  const kinds = [ArrayBuffer, Blob, FormData, URLSearchParams];
  return ArrayBuffer.isView(body) || kinds.some((kind) => body instanceof kind);
}

/** `fetch` throws a `TypeError` when the network fails, and other things when it is told to stop. */
function isNetworkFailure(error: unknown): boolean {
  return error instanceof TypeError;
}

const NOT_SENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]);

/** Node says when the connection never stood; browsers tell nobody. */
function wasSent(error: unknown): boolean {
  const cause: unknown = error instanceof Error ? error.cause : undefined;
  const code: unknown = typeof cause === "object" && cause !== null && "code" in cause ? cause.code : undefined;
  return !(typeof code === "string" && NOT_SENT.has(code));
}

/** Frees the connection of a response that nobody will read. */
async function discard(response: ResponseLike): Promise<void> {
  if (response instanceof Response) await response.body?.cancel().catch(() => {});
}
