// Recognises failed connections, by codes or, in browsers, by messages.
//
// "Every `TypeError`", because `fetch` throws one, would also retry the bugs of the function that `retry` calls, and
// no failure of other clients. Node and most clients report a failure as a `code` of the error or of its cause.

/** The connection was not established, so the server has not received the request. */
const NOT_SENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]);

/** Of Node, of its `fetch` (`UND_ERR_`), and of axios in browsers (`ERR_NETWORK`). */
const FAILED = new Set([
  ...NOT_SENT,
  "ECONNRESET",
  "ECONNABORTED",
  "EPIPE",
  "ETIMEDOUT",
  "ERR_SOCKET_CONNECTION_TIMEOUT",
  "EHOSTUNREACH",
  "EHOSTDOWN",
  "ENETUNREACH",
  "ENETDOWN",
  "UND_ERR_SOCKET",
  "UND_ERR_HEADERS_TIMEOUT",
  "UND_ERR_BODY_TIMEOUT",
  "ERR_NETWORK",
]);

/** Messages of `fetch` in Chromium, Firefox, Safari and React Native, whose errors have no code. */
const MESSAGES =
  /^(failed to fetch|network ?error|load failed|the (internet|network) connection|network request failed)/i;

/** Causes can form a circle. Clients nest a few. */
const MAX_CAUSES = 16;

/** Returns whether the error of a client shows that the connection failed or timed out. */
export function isFailedConnection(error: unknown): boolean {
  return codesOf(error).some((code) => FAILED.has(code)) || (error instanceof TypeError && MESSAGES.test(error.message));
}

/** Returns whether an error of `fetch` itself is a failed connection. `fetch` throws other errors if it is aborted. */
export function isFetchFailure(error: unknown): boolean {
  return error instanceof TypeError || isFailedConnection(error);
}

/** Returns whether the connection was not established for the last request. Browsers do not report it. */
export function wasNotSent(error: unknown): boolean {
  return codesOf(error).some((code) => NOT_SENT.has(code));
}

/** The codes of an error and of its causes. */
function codesOf(error: unknown): string[] {
  const codes: string[] = [];
  let cause = error;
  for (let nested = 0; nested < MAX_CAUSES && typeof cause === "object" && cause !== null; nested += 1) {
    const { code, cause: next } = cause as { code?: unknown; cause?: unknown };
    if (typeof code === "string") codes.push(code);
    cause = next;
  }
  return codes;
}
