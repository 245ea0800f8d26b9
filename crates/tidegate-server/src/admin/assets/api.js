// Client of the admin API. The token is kept in this tab only.
"use strict";

const TOKEN = "tidegate-admin-token";
const ANSWER_MS = 5000;    // a server that takes longer counts as unreachable

/** The token is missing or wrong. */
export class Unauthorized extends Error {}

/** The server did not answer. */
export class Unreachable extends Error {}

/** The server answered with an error, such as that a policy does not exist. */
export class Refused extends Error {}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
export const forgetToken = () => sessionStorage.removeItem(TOKEN);
/** Removes other characters: a header and therefore a token contains only visible ASCII. */
export const keepToken = (token) => sessionStorage.setItem(TOKEN, token.trim().replace(/[^\x21-\x7e]/g, "?"));

export function request(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { cache: "no-store", ...options, headers });
}

export async function requestJson(path, options) {
  const { response, body } = await readAnswer(path, options);
  if (response.status === 401) throw new Unauthorized();
  if (!response.ok) throw new Refused(body.detail || `status ${response.status}`);
  return body;
}

/**
 * Reads a whole answer. Errors of the network, timeouts and answers that are not JSON, such as the
 * error page of a proxy, are `Unreachable`.
 */
async function readAnswer(path, options) {
  try {
    const response = await request(path, { ...options, signal: AbortSignal.timeout(ANSWER_MS) });
    return { response, body: response.status === 401 ? null : await response.json() };
  } catch {
    throw new Unreachable("The server does not answer.");
  }
}

/** Calls `onEvent` with the fields of each event until the stream ends or `shouldContinue` returns false. */
export async function readEvents(response, shouldContinue, onEvent) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    if (!shouldContinue()) return void reader.cancel();
    const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => {
        const at = line.indexOf(": ");
        return [line.slice(0, at), line.slice(at + 2)];
      }));
      if (fields.event) onEvent(fields);
    }
  }
}
