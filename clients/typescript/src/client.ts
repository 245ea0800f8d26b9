// The client of a tidegate server.
//
// A denial is a value, a failure an exception. The client does not retry, because a check
// usually delays another request. A check with an `id` can be repeated safely.

import type { Answer, Denied, Problem } from "./answers.js";
import { DeadlineExceeded, UnexpectedAnswer, Unreachable, rejectUnknown, requireType } from "./errors.js";
import { Permit } from "./permit.js";
import {
  type Check,
  type PermitRequest,
  type Raw,
  type WaitingCheck,
  decodeAnswer,
  decodeAnswers,
  decodeGrant,
  encodeCheck,
  encodePermit,
  unexpected,
} from "./wire.js";

const DEFAULT_URL = "http://127.0.0.1:8080";
/** The longest answer that is read. A batch of 1,000 checks against 256 limits each is far shorter. */
const MAX_ANSWER_BYTES = 64 << 20;
/** The longest time that timers accept. */
const MAX_TIMEOUT_MS = 2 ** 31 - 1;

/** Settings of a client. */
export interface ClientOptions {
  /** The address of the server. Default: `http://127.0.0.1:8080`. */
  url?: string;
  /** The server's secret, if it requires one. */
  token?: string;
  /** The time for a whole call, in addition to the `maxWaitMs` of a check. Default: 1,000. */
  timeoutMs?: number;
  /** The function to send requests with. Default: the global `fetch`. */
  fetch?: typeof fetch;
}

/** A client of a tidegate server. */
export class Client {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #timeoutMs: number;
  readonly #fetch: typeof fetch;

  /** Creates a client with the default settings. */
  constructor();
  /** Creates a client with these settings, or with the defaults for the server at this URL. */
  constructor(options: string | URL | ClientOptions);
  constructor(options: string | URL | ClientOptions = {}) {
    // JavaScript drops arguments that a function does not take. Here they may be a token.
    if (arguments.length > 1) throw new TypeError("options must be one object: new Client({ url, token })");
    // Often a variable of the environment that is not set: the default URL would then be another server, or none.
    const help = `undefined; for the default, ${DEFAULT_URL}, leave it out`;
    if (arguments.length > 0 && arguments[0] === undefined) throw new TypeError(`options must be a URL or an object, not ${help}`);
    const isUrl = typeof options === "string" || options instanceof URL;
    const settings: ClientOptions = isUrl ? { url: String(options) } : options;
    rejectUnknown("options", settings, ["url", "token", "timeoutMs", "fetch"]);
    if ("url" in settings && settings.url === undefined) throw new TypeError(`url must be a string, not ${help}`);
    const { url = DEFAULT_URL, token, timeoutMs = 1000, fetch: send } = settings;
    requireType("url", url, "string");
    requireType("token", token, "string");
    requireType("timeoutMs", timeoutMs, "number");
    requireType("fetch", send ?? undefined, "function");
    // The paths of the API are appended. The message does not show the query, which may have a secret.
    if (/[?#]/.test(url)) throw new RangeError("url must not have a query or a fragment");
    // A message ends up in logs, so it does not show a password, which a URL without a scheme may have too.
    const shown = url.replace(/^([^/]*\/\/)?[^/]*@/, "$1");
    if (!/^https?:\/\//.test(url)) throw new RangeError(`url must start with http:// or https://, not ${shown}`);
    if (shown !== url) throw new RangeError(`url must not have a user or password, which fetch rejects: use ${shown} and token`);
    if (!(timeoutMs > 0 && timeoutMs < 2 ** 31)) {
      throw new RangeError(`timeoutMs must be more than 0 and less than 2^31, not ${timeoutMs}`);
    }
    // A message ends up in logs, so it does not show the token.
    if (token !== undefined && !/^[!-~]([ -~]*[!-~])?$/.test(token)) {
      throw new RangeError(
        "token must not be empty and may have only printable ASCII characters, without a space at either end; if it was read from a file, remove the line break at its end",
      );
    }
    this.#url = url.replace(/\/+$/, "");
    this.#headers = { "content-type": "application/json" };
    if (token !== undefined) this.#headers["authorization"] = `Bearer ${token}`;
    this.#timeoutMs = timeoutMs;
    // The global `fetch` is looked up for each call, and called without `this`, as browsers require.
    this.#fetch = send ?? ((input, init) => globalThis.fetch(input, init));
  }

  /** Sends a check. */
  async check(check: WaitingCheck): Promise<Answer> {
    const body = encodeCheck(check);
    // The time that a check may wait at the server is added to the timeout.
    return decodeAnswer(await this.#send("POST", "/v1/check", body, check.maxWaitMs));
  }

  /** Sends up to 1,000 checks. Answers are in order; an `id` used before with another cost gets a `Problem`. */
  async checkBatch(checks: readonly Check[]): Promise<(Answer | Problem)[]> {
    if (!Array.isArray(checks)) throw new TypeError("checks must be an array, such as [{ policy: \"login\", key: \"alice\" }]");
    const body = { checks: checks.map(encodeCheck) };
    return decodeAnswers(await this.#send("POST", "/v1/check/batch", body), checks.length);
  }

  /** Acquires a permit under a concurrency limit. Check `allowed`: only a `Permit` can be held. */
  async permit(request: PermitRequest): Promise<Permit | Denied> {
    const body = encodePermit(request);
    const sentAt = performance.now();
    const grant = decodeGrant(await this.#send("POST", "/v1/permits", body));
    if ("allowed" in grant) return grant;
    return new Permit(grant, sentAt, (method, path, body) => this.#send(method, path, body));
  }

  async #send(method: string, path: string, body?: object, extraMs = 0): Promise<Raw> {
    const timeoutMs = Math.min(this.#timeoutMs + extraMs, MAX_TIMEOUT_MS);
    const url = this.#url + path;
    // Not in `try`: a value that JSON cannot express is a mistake of the caller, not a failure of the server.
    const json = body === undefined ? null : JSON.stringify(body);
    // Not `AbortSignal.timeout`, whose timer continues after the answer has arrived.
    const deadline = new AbortController();
    const timer = setTimeout(() => deadline.abort(), timeoutMs);
    try {
      const response = await this.#fetch(url, {
        method,
        headers: this.#headers,
        body: json,
        redirect: "manual",
        signal: deadline.signal,
      });
      return { url, status: response.status, fields: [...response.headers], body: await read(response, url) };
    } catch (error) {
      if (error instanceof UnexpectedAnswer) throw error;
      const failed = `no answer from ${url}`;
      if (deadline.signal.aborted) {
        throw new DeadlineExceeded(`${failed}: timed out after ${timeoutMs} ms`, { cause: error });
      }
      throw new Unreachable(`${failed}: ${reason(error)}`, { cause: error });
    } finally {
      clearTimeout(timer);
    }
  }
}

async function read(response: Response, url: string): Promise<string> {
  if (response.body === null) return "";
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    bytes += value.byteLength;
    if (bytes > MAX_ANSWER_BYTES) {
      await reader.cancel();
      throw unexpected(url, `longer than ${MAX_ANSWER_BYTES} bytes`);
    }
    text += decoder.decode(value, { stream: true });
  }
}

/** The reason of a failed `fetch`, whose own message is only "fetch failed". */
function reason(error: unknown): string {
  const { message, cause } = error instanceof Error ? error : new Error(String(error));
  // An error of OpenSSL ends with a line break.
  return (cause instanceof Error && cause.message !== "" ? cause.message : message).trim();
}
