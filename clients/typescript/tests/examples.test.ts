// The Express and Hono examples, with and without a tidegate server.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { type IncomingMessage, type RequestListener, createServer, request as httpRequest } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { before, describe, test } from "node:test";

import { getRequestListener } from "@hono/node-server";

import { Client, Rejected, admit } from "@tidegate/client";
import { createApp as expressApp } from "../examples/express.js";
import { createApp as honoApp } from "../examples/hono.js";
import { type OnFailure, settings } from "../examples/settings.js";
import { NOBODY, TYPESCRIPT, listening, somebody, startSilent, startTidegate } from "./support.js";

let tidegate: string;

before(async () => {
  tidegate = await startTidegate();
  // Failing open is logged; here it is expected.
  console.warn = () => {};
});

const APPS: Record<string, (client: Client, onFailure: OnFailure) => RequestListener> = {
  Express: (client, onFailure) => expressApp(client, onFailure),
  Hono: (client, onFailure) => getRequestListener(honoApp(client, onFailure).fetch),
};

for (const [name, app] of Object.entries(APPS)) {
  const started = (url: string, onFailure: OnFailure, timeoutMs: number) =>
    listening(createServer(app(new Client({ url, timeoutMs }), onFailure)));

  describe(name, () => {
    test("admits requests up to the limit, then denies", async () => {
      const service = await started(tidegate, "deny", 10_000);
      const headers = { "x-api-key": somebody() };
      const call = () => fetch(`${service}/api/hello?x=1`, { headers });
      for (const remaining of [2, 1, 0]) {
        const response = await call();
        assert.deepEqual(await response.json(), { hello: "world" });
        assert.match(response.headers.get("ratelimit") ?? "", new RegExp(`^"api";r=${remaining};t=\\d+$`));
      }
      const denied = await call();
      assert.equal(denied.status, 429);
      assert.equal(denied.headers.get("content-type"), "application/problem+json");
      assert.equal(denied.headers.get("ratelimit-policy"), '"api";q=3;w=3600');
      assert.ok(Number(denied.headers.get("retry-after")) > 0);
      const problem = (await denied.json()) as Record<string, unknown>;
      assert.deepEqual(problem["violated-policies"], ["api"]);
    });

    test("admits requests that match no policy", async () => {
      const response = await fetch(`${await started(tidegate, "deny", 10_000)}/elsewhere`);
      assert.equal(response.status, 404);
      assert.equal(response.headers.get("ratelimit"), null);
    });

    test("counts every path that reaches a handler", async () => {
      const { port } = new URL(await started(tidegate, "deny", 10_000));
      const paths = ["/api/hello", "/api%2Fhello", "/%61pi/hello", "/API/hello", "/api/hello/", "//api/hello", "/api/hello%3Fx"];
      let counted = 0;
      const logins = ["/login/", "/LOGIN", "/login"];
      for (const path of [...paths, ...logins, ...paths.map((each) => `http://elsewhere${each}`)]) {
        const method = logins.includes(path) ? "POST" : "GET";
        const request = httpRequest({ port, method, path, headers: { "x-api-key": somebody() } }).end();
        const [response] = (await once(request, "response")) as [IncomingMessage];
        response.resume();
        assert.ok([200, 404].includes(response.statusCode ?? 0), path);
        if (response.statusCode !== 200) continue;
        assert.ok("ratelimit" in response.headers, path);
        counted += 1;
      }
      assert.ok(counted >= 3, `${counted}`);
    });

    test("fails open or closed as configured", async () => {
      for (const url of [NOBODY, await startSilent()]) {
        const opened = await fetch(`${await started(url, "allow", 100)}/api/hello`);
        assert.deepEqual(await opened.json(), { hello: "world" });
        const closed = await fetch(`${await started(url, "deny", 100)}/api/hello`);
        assert.equal(closed.status, 503);
        assert.equal(closed.headers.get("retry-after"), "1");
        const problem = (await closed.json()) as Record<string, string>;
        assert.match(problem["type"] ?? "", /#temporary-reduced-capacity$/);
      }
    });

    // Regression: the log said that tidegate does not answer, although it had rejected the check.
    test("logs an error of tidegate as no decision", async (context) => {
      const warn = context.mock.method(console, "warn", () => {});
      for (const [onFailure, status] of [["allow", 404], ["deny", 503]] as const) {
        const response = await fetch(`${await started(tidegate, onFailure, 10_000)}/jobs`);
        assert.equal(response.status, status);
        const [message] = warn.mock.calls.at(-1)?.arguments ?? [];
        const expected = `no decision by tidegate, on_failure is ${onFailure}: answer from ${tidegate}/v1/check: 409 Conflict: `;
        assert.ok(String(message).startsWith(expected), String(message));
      }
      assert.equal(warn.mock.callCount(), 2);
    });
  });
}

test("refuses requests that tidegate rejects as invalid", async () => {
  const client = new Client({ url: tidegate, timeoutMs: 10_000 });
  for (const attributes of [{ clientIp: "nowhere" }, { path: "/api/x", headers: { "x-api-key": "k".repeat(70_000) } }]) {
    const { refusal, failure } = await admit(client, { attributes }, "allow");
    assert.equal(refusal?.status, 400);
    assert.ok(failure instanceof Rejected);
  }
});

test("applies onFailure when the policy cannot be checked", async () => {
  const client = new Client({ url: tidegate, timeoutMs: 10_000 });
  const attributes = { path: "/jobs", clientIp: "203.0.113.7" };
  const { refusal, failure } = await admit(client, { attributes }, "allow");
  assert.equal(refusal, null);
  assert.ok(failure instanceof Rejected && failure.problem.status === 409);
});

// Regression: the commands ran the tests, which fail without TIDEGATE_BIN, so the examples did not start.
test("the examples start as they say, in a fresh copy", async () => {
  const copy = mkdtempSync(`${tmpdir()}/tidegate-examples-`);
  try {
    for (const name of ["src", "tests", "examples", "package.json", "tsconfig.json", "tsconfig.build.json", "tsconfig.test.json"]) {
      cpSync(TYPESCRIPT + name, `${copy}/${name}`, { recursive: true });
    }
    // In place of `npm ci`.
    symlinkSync(`${TYPESCRIPT}node_modules`, `${copy}/node_modules`);
    for (const example of ["express", "hono"]) {
      const source = readFileSync(`${TYPESCRIPT}examples/${example}.ts`, "utf8");
      const [, command = ""] = /^\/\/ {3}npm ci && (.*)$/m.exec(source) ?? [];
      assert.match(command, new RegExp(`node build/examples/${example}\\.js$`));
      await startsWith(command, copy);
    }
  } finally {
    rmSync(copy, { recursive: true });
  }
});

/** Runs a command that starts a service, and sends it a request. */
async function startsWith(command: string, cwd: string): Promise<void> {
  // NODE_TEST_CONTEXT: `node --test` runs nothing within another one.
  const { TIDEGATE_BIN: _, NODE_TEST_CONTEXT: __, ...env } = process.env;
  const port = await freePort();
  // A process group, because npm and the service are children of the shell.
  const shell = spawn("sh", ["-c", command], { cwd, env: { ...env, PORT: `${port}`, TIDEGATE_URL: NOBODY }, detached: true });
  let log = "";
  const started = new Promise<void>((resolve, reject) => {
    const read = (chunk: Buffer) => {
      log += chunk.toString();
      if (log.includes(`http://127.0.0.1:${port}`)) resolve();
    };
    shell.stdout.on("data", read);
    shell.stderr.on("data", read);
    shell.once("exit", () => reject(new Error(`${command} ended: ${log}`)));
  });
  try {
    await started;
    const response = await fetch(`http://127.0.0.1:${port}/api/hello`);
    assert.deepEqual(await response.json(), { hello: "world" });
  } finally {
    if (shell.exitCode === null) {
      const ended = once(shell, "exit");
      process.kill(-(shell.pid ?? 0), "SIGTERM");
      await ended;
    }
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

test("reads settings from the environment", () => {
  assert.equal(settings({}).onFailure, "allow");
  assert.equal(settings({ TIDEGATE_ON_FAILURE: "deny", PORT: "4000" }).port, 4000);
  assert.throws(() => settings({ TIDEGATE_ON_FAILURE: "maybe" }), /^RangeError: TIDEGATE_ON_FAILURE must be allow or deny/);
  assert.throws(() => settings({ TIDEGATE_DEADLINE_MS: "soon" }), /^RangeError: timeoutMs must/);
});
