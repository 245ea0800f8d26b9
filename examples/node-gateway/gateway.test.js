// Tests of the gateway with real requests, a real tidegate server and a test upstream.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants } from "node:fs";
import http from "node:http";
import net from "node:net";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { Client } from "@tidegate/client";

import { createGateway } from "./gateway.js";

const START_TIMEOUT_MS = 20_000;
const STOP_TIMEOUT_MS = 10_000;

/** @type {(() => unknown)[]} */
const cleanups = [];
after(async () => {
  for (const cleanup of cleanups) await cleanup();
});

let tidegate = "";
let upstream = new URL("http://127.0.0.1:1");
/** @type {{ method: string | undefined, url: string | undefined, headers: http.IncomingHttpHeaders, body: string }[]} */
const received = [];

before(async () => {
  tidegate = await startTidegate();
  const server = http.createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    received.push({ method: request.method, url: request.url, headers: request.headers, body });
    response.writeHead(201, { "x-from": "upstream", connection: "x-hop", "x-hop": "1" }).end("made");
  });
  upstream = new URL(await listening(server));
});

/**
 * @param {NodeJS.ProcessEnv} [settings]
 * @returns {Promise<string>}
 */
async function startTidegate(settings = {}) {
  const binary = process.env["TIDEGATE_BIN"] ?? "";
  try {
    accessSync(binary, constants.X_OK);
  } catch {
    throw new Error(
      `TIDEGATE_BIN must name the tidegate binary (cargo build makes target/debug/tidegate); it is "${binary}"`,
    );
  }
  const config = fileURLToPath(new URL("tidegate.yaml", import.meta.url));
  const fronts = ["--http", "127.0.0.1:0", "--admin", "off", "--grpc", "off", "--resp", "off"];
  const server = spawn(binary, ["serve", "--config", config, ...fronts], { env: { ...process.env, ...settings } });
  cleanups.push(async () => {
    if (server.exitCode !== null) return;
    const timer = setTimeout(() => server.kill("SIGKILL"), STOP_TIMEOUT_MS);
    const ended = once(server, "exit");
    server.kill("SIGTERM");
    await ended;
    clearTimeout(timer);
  });
  return new Promise((resolve, reject) => {
    let log = "";
    const fail = () => reject(new Error(`tidegate did not start: ${log}`));
    const timer = setTimeout(fail, START_TIMEOUT_MS);
    for (const stream of [server.stdout, server.stderr]) {
      stream.on("data", (chunk) => {
        log += chunk;
        const found = /http:\/\/127\.0\.0\.1:\d+/.exec(log);
        if (found === null) return;
        clearTimeout(timer);
        resolve(found[0]);
      });
    }
    server.once("exit", fail);
  });
}

/** @param {http.Server | net.Server} server */
async function listening(server) {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  cleanups.push(() => {
    server.close();
    if (server instanceof http.Server) server.closeAllConnections();
  });
  const address = server.address();
  assert.ok(address !== null && typeof address === "object");
  return `http://127.0.0.1:${address.port}`;
}

/** @param {Partial<import("./gateway.js").Settings> & { url?: string, timeoutMs?: number }} [settings] */
async function started({ url = tidegate, timeoutMs = 10_000, ...settings } = {}) {
  const client = new Client({ url, timeoutMs });
  return listening(createGateway({ client, onFailure: "deny", upstream, log: () => {}, ...settings }));
}

test("forwards allowed requests and returns the response with the rate limit fields", async () => {
  const gateway = await started();
  const response = await fetch(`${gateway}/api/things?x=1`, {
    method: "POST",
    body: "thing",
    headers: { "x-api-key": "passing", "x-forwarded-for": "6.6.6.6" },
  });
  assert.equal(response.status, 201);
  assert.equal(await response.text(), "made");
  assert.equal(response.headers.get("x-from"), "upstream");
  assert.equal(response.headers.get("x-hop"), null);
  assert.match(response.headers.get("ratelimit") ?? "", /^"api-1s";r=19;t=\d+$/);
  assert.equal(
    response.headers.get("ratelimit-policy"),
    '"api-1s";q=20;w=1, "api-1m";q=100;w=60, "address";q=1000;w=60',
  );
  const [request] = received.splice(0);
  assert.deepEqual([request?.method, request?.url, request?.body], ["POST", "/api/things?x=1", "thing"]);
  assert.equal(request?.headers["x-forwarded-for"], "127.0.0.1");
});

test("denies the sixth login without forwarding it", async () => {
  const gateway = await started();
  const statuses = [];
  for (let times = 0; times < 6; times += 1) {
    const response = await fetch(`${gateway}/login`, { method: "POST", body: "guess" });
    statuses.push(response.status);
    if (response.status === 201) {
      await response.text();
      continue;
    }
    assert.equal(response.headers.get("content-type"), "application/problem+json");
    assert.match(response.headers.get("ratelimit") ?? "", /^"login";r=0;t=\d+$/);
    assert.ok(Number(response.headers.get("retry-after")) > 0);
    const problem = /** @type {Record<string, unknown>} */ (await response.json());
    assert.deepEqual(problem["violated-policies"], ["login"]);
  }
  assert.deepEqual(statuses, [201, 201, 201, 201, 201, 429]);
  assert.equal(received.splice(0).length, 5);
});

test("prevents request smuggling in a body", async () => {
  const { port } = new URL(await started());
  const hidden = "GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n";
  const chunked = `transfer-encoding: chunked\r\n\r\n${hidden.length.toString(16)}\r\n${hidden}\r\n0\r\n\r\n`;
  const counted = `connection: content-length\r\ncontent-length: ${hidden.length}\r\n\r\n${hidden}`;
  for (const rest of [chunked, counted]) {
    const socket = net.connect(Number(port), "127.0.0.1");
    socket.write(`GET /elsewhere HTTP/1.1\r\nhost: x\r\n${rest}`);
    const [head] = await once(socket, "data");
    assert.match(String(head), /^HTTP\/1.1 201 /);
    socket.destroy();
    // A smuggled request would have arrived before this one, on the same connection.
    await (await fetch(`http://127.0.0.1:${port}/last`)).text();
    assert.deepEqual(received.splice(0).map(({ url, body }) => [url, body]), [
      ["/elsewhere", hidden],
      ["/last", ""],
    ]);
  }
});

test("strips scheme and host from the request target", async () => {
  const { port } = new URL(await started());
  const request = http.request({ port, path: "http://elsewhere/api/x", headers: { "x-api-key": "absolute" } }).end();
  const [response] = await once(request, "response");
  response.resume();
  assert.match(response.headers["ratelimit"], /^"api-1s";r=19;/);
  assert.deepEqual(received.splice(0).map(({ url }) => url), ["/api/x"]);
});

test("fails open or closed without tidegate", async () => {
  const silent = net.createServer((socket) => {
    cleanups.push(() => socket.destroy());
  });
  for (const url of ["http://127.0.0.1:1", await listening(silent)]) {
    const opened = await fetch(`${await started({ url, timeoutMs: 100, onFailure: "allow" })}/api/x`);
    assert.equal(await opened.text(), "made");
    const closed = await fetch(`${await started({ url, timeoutMs: 100, onFailure: "deny" })}/api/x`);
    assert.equal(closed.status, 503);
    assert.equal(closed.headers.get("retry-after"), "1");
    await closed.text();
  }
  received.splice(0);
});

// Regression: the log said that tidegate does not answer, although it had rejected the token.
test("logs an error of tidegate as no decision", async () => {
  const url = await startTidegate({ TIDEGATE_TOKENS: "a-token-that-the-gateway-does-not-have" });
  /** @type {string[]} */
  const logged = [];
  const gateway = await started({ url, onFailure: "allow", log: (message) => logged.push(message) });
  assert.equal(await (await fetch(`${gateway}/api/x`)).text(), "made");
  const expected = `no decision by tidegate, on_failure is allow: answer from ${url}/v1/check: 401 Unauthorized: `;
  assert.deepEqual(logged.map((message) => message.startsWith(expected)), [true], logged.join());
  received.splice(0);
});

test("answers 502 for an unreachable and for a silent upstream", async () => {
  const gone = await started({ upstream: new URL("http://127.0.0.1:1") });
  assert.equal((await fetch(`${gone}/elsewhere`)).status, 502);
  const silent = net.createServer((socket) => {
    cleanups.push(() => socket.destroy());
  });
  const waiting = await started({ upstream: new URL(await listening(silent)), upstreamTimeoutMs: 100 });
  assert.equal((await fetch(`${waiting}/elsewhere`)).status, 502);
});

test("accepts long keys", async () => {
  const gateway = await started({ onFailure: "allow" });
  const response = await fetch(`${gateway}/api/x`, { headers: { "x-api-key": "k".repeat(10_000) } });
  assert.equal(await response.text(), "made");
  assert.match(response.headers.get("ratelimit") ?? "", /^"api-1s";r=19;/);
  received.splice(0);
});
