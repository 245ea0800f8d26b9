// A reverse proxy that checks every request with tidegate before forwarding it.
//
// Gateways of this kind commonly use a sorted set per client in Redis and a Lua script: one
// window, one limit, the clock of the gateway, and requests that hang when Redis hangs. Here
// the gateway only sends the attributes of the request. The limits are in tidegate.yaml. They
// are checked together, all charged or none. If tidegate makes no decision, `onFailure` decides.

import http from "node:http";

import { admit } from "@tidegate/client";

/** Header fields that are only for the next hop (RFC 9110, section 7.6.1). */
const HOP_BY_HOP = ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

/**
 * @typedef {object} Settings
 * @property {import("@tidegate/client").Client} client
 * @property {"allow" | "deny"} onFailure What happens to requests if tidegate makes no decision.
 * @property {URL} upstream URL that requests are forwarded to.
 * @property {number} [upstreamTimeoutMs] How long the upstream may send nothing. Default: 30,000.
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
  // Clients may send scheme and host. They are removed, so that the checked path is the forwarded one.
  request.url = (request.url ?? "/").replace(/^https?:\/\/[^/?#]*/i, "") || "/";
  const { refusal, fields, failure } = await admit(client, { attributes: attributesOf(request) }, onFailure);
  if (failure !== null) log(`no decision by tidegate, on_failure is ${onFailure}: ${failure.message}`);
  if (response.destroyed) return;
  if (refusal !== null) {
    response.writeHead(refusal.status, Object.fromEntries(refusal.fields)).end(refusal.body);
    // Discards the body of a denied request.
    request.resume();
    return;
  }
  forward(toUpstream, request, response, Object.fromEntries(fields));
}

/**
 * Returns the attributes that policies match. Headers that no policy uses are not sent.
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
    // The address of the peer: a client can write anything into X-Forwarded-For.
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
function forward({ upstream, upstreamTimeoutMs = 30_000 }, request, response, fields) {
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
  sent.on("timeout", () => sent.destroy(new Error("the upstream timed out")));
  sent.on("error", () => fail(response, 502));
  // Cancels the upstream request when the client disconnects.
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
 * Returns the fields that tell the upstream where the body ends. Without them the body of a GET would follow
 * its head directly, and a request hidden in it would reach the upstream uncounted.
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
  // A partial response cannot be replaced; closing the connection signals the error.
  if (response.headersSent) response.destroy();
  else response.writeHead(status, { "content-length": 0 }).end();
}
