// Client of the engine. The page itself makes no decisions.
"use strict";

const TOKEN = "tidegate-token";

/** The token is missing or wrong. */
export class Unauthorized extends Error {}

/** Keeps the token in this tab. A header contains only visible ASCII. */
export function keepToken(token) {
  sessionStorage.setItem(TOKEN, token.trim().replace(/[^\x21-\x7e]/g, "?"));
}

/** Plays events against limits and returns the answer that `/openapi.json` describes. */
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
