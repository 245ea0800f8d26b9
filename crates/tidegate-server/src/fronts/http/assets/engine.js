// Asks the engine. Nothing here or elsewhere on the page decides anything.
"use strict";

const TOKEN = "tidegate-token";

/** The server wants a token, or another one. */
export class Unauthorized extends Error {}

/** Keeps the token in this tab. A header takes visible ASCII alone. */
export function keepToken(token) {
  sessionStorage.setItem(TOKEN, token.trim().replace(/[^\x21-\x7e]/g, "?"));
}

/** Plays events against limits; the answer as `/openapi.json` describes it. */
export async function play(question) {
  const headers = { "content-type": "application/json" };
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.authorization = `Bearer ${token}`;
  const response = await fetch("v1/playground", { method: "POST", headers, body: JSON.stringify(question) });
  if (response.status === 401) throw new Unauthorized();
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail || `The server answered ${response.status}.`);
  return body.limits;
}
