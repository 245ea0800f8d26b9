// A reverse proxy that asks tidegate before it passes a request on.
//
// The usual gateway of this kind keeps a sorted set per client in Redis and a Lua script
// beside it: one window, one limit, the gateway's own clock, and requests that hang when
// Redis does. Here the gateway only says who asks for what. Which limits hold is in
// tidegate.yaml; they are checked together, all charged or none; and an answer that takes
// too long is no answer: `onFailure` decides then.

import http from "node:http";

import { admit } from "@tidegate/client";

/** What a hop says to the next one only (RFC 9110, section 7.6.1). */
const HOP_BY_HOP = ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

/**
 * @typedef {object} Settings
 * @property {import("@tidegate/client").Client} client
 * @property {"allow" | "deny"} onFailure What happens while tidegate does not answer.
 * @property {URL} upstream Where requests go.
 * @property {number} [upstreamTimeoutMs] How long the upstream may be silent; 30,000 unless given.
 * @property {(message: string) => void} [log]
 */

/**
 * @param {Settings} settings
 * @returns {http.Server}
 */
export function createGateway(settings) {
  const { log = console.warn } = settings;
  return http.createServer((request, response) => {
    handle(settings, request, response).catch((error) => {
      log(`${request.method} ${request.url}: ${error}`);
      fail(response, 500);
    });
  });
}

/**
 * @param {Settings} settings
 * @param {http.IncomingMessage} request
 * @param {http.ServerResponse} response
 */
async function handle({ client, onFailure, log = console.warn, ...toUpstream }, request, response) {
  // Without scheme and host, which a client may send: what is asked about is what is passed on.
  request.url = (request.url ?? "/").replace(/^https?:\/\/[^/?#]*/i, "") || "/";
  const { refusal, fields, failure } = await admit(client, { attributes: attributesOf(request) }, onFailure);
  if (failure !== null) log(`tidegate does not answer, on failure ${onFailure}: ${failure.message}`);
  if (response.destroyed) return;
  if (refusal !== null) {
    response.writeHead(refusal.status, Object.fromEntries(refusal.fields)).end(refusal.body);
    // A refusal does not wait for a body that nobody wants.
    request.resume();
    return;
  }
  pass(toUpstream, request, response, Object.fromEntries(fields));
}

/**
 * What policies choose by. Headers that no policy makes keys of stay here.
 *
 * @param {http.IncomingMessage} request
 * @returns {import("@tidegate/client").Attributes}
 */
function attributesOf(request) {
  const { method = "GET", url = "/", headers, socket } = request;
  const apiKey = headers["x-api-key"];
  return {
    method,
    path: url,
    // The peer's own address: X-Forwarded-For is whatever a client writes.
    ...(socket.remoteAddress === undefined ? {} : { clientIp: socket.remoteAddress }),
    ...(headers.host === undefined ? {} : { host: headers.host }),
    headers: typeof apiKey === "string" ? { "x-api-key": apiKey } : {},
  };
}

/**
 * Sends the request to the upstream and its response back, with the rate limit fields.
 *
 * @param {{ upstream: URL, upstreamTimeoutMs?: number }} settings
 * @param {http.IncomingMessage} request
 * @param {http.ServerResponse} response
 * @param {Record<string, string>} fields
 */
function pass({ upstream, upstreamTimeoutMs = 30_000 }, request, response, fields) {
  const { method, url } = request;
  const headers = {
    ...endToEnd(request.headers),
    ...framing(request.headers),
    "x-forwarded-for": request.socket.remoteAddress ?? "",
  };
  const { hostname, port } = upstream;
  const sent = http.request({ hostname, port, method, path: url, headers, timeout: upstreamTimeoutMs });
  sent.on("response", (received) => {
    response.writeHead(received.statusCode ?? 502, { ...endToEnd(received.headers), ...fields });
    received.pipe(response);
    received.on("error", () => response.destroy());
  });
  sent.on("timeout", () => sent.destroy(new Error("the upstream is silent")));
  sent.on("error", () => fail(response, 502));
  // Whoever goes away is not worked for.
  response.on("close", () => {
    if (!response.writableFinished) sent.destroy();
  });
  request.pipe(sent);
}

/**
 * @param {http.IncomingHttpHeaders} headers
 * @returns {http.OutgoingHttpHeaders}
 */
function endToEnd(headers) {
  const named = (headers.connection ?? "").split(",").map((name) => name.trim().toLowerCase());
  const dropped = new Set([...HOP_BY_HOP, ...named]);
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !dropped.has(name)));
}

/**
 * How the upstream tells where the body ends. Without it the body of a GET would follow its head as it is,
 * and whatever request is written in it would reach the upstream uncounted.
 *
 * @param {http.IncomingHttpHeaders} headers
 * @returns {http.OutgoingHttpHeaders}
 */
function framing(headers) {
  if (headers["transfer-encoding"] !== undefined) return { "transfer-encoding": "chunked" };
  return headers["content-length"] === undefined ? {} : { "content-length": headers["content-length"] };
}

/**
 * @param {http.ServerResponse} response
 * @param {number} status
 */
function fail(response, status) {
  // Half a response cannot be taken back; that it is cut off says what is to be said.
  if (response.headersSent) response.destroy();
  else response.writeHead(status, { "content-length": 0 }).end();
}
