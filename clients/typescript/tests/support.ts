// A real tidegate server and helpers for the tests.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants, readFileSync } from "node:fs";
import { type IncomingMessage, type Server, createServer } from "node:http";
import { type AddressInfo, type Socket, createServer as createTcpServer } from "node:net";
import { after } from "node:test";
import { fileURLToPath } from "node:url";

const START_TIMEOUT_MS = 20_000;
const STOP_TIMEOUT_MS = 10_000;

/** From build/tests. */
export const TYPESCRIPT = fileURLToPath(new URL("../../", import.meta.url));
export const TESTDATA = fileURLToPath(new URL("../../../testdata/", import.meta.url));

export const readTestdata = (name: string): string => readFileSync(TESTDATA + name, "utf8");

// One hook per importing file: a hook that is registered within a test ends with the test.
const cleanups: (() => unknown)[] = [];
after(async () => {
  for (const cleanup of cleanups) await cleanup();
});

/** Starts a server for the tests of a file; it ends with them. Returns the address of its front for this scheme. */
export async function startTidegate(scheme: "http" | "grpc" = "http"): Promise<string> {
  const binary = process.env["TIDEGATE_BIN"] ?? "";
  try {
    accessSync(binary, constants.X_OK);
  } catch {
    throw new Error(
      `TIDEGATE_BIN must name the tidegate binary (cargo build makes target/debug/tidegate); it is "${binary}"`,
    );
  }
  const fronts = ["--http", "127.0.0.1:0", "--admin", "off", "--grpc", "127.0.0.1:0", "--resp", "off"];
  const server = spawn(binary, ["serve", "--config", `${TESTDATA}tidegate.yaml`, ...fronts]);
  cleanups.push(() => stop(server));
  return address(server, scheme);
}

function address(server: ChildProcess, scheme: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let log = "";
    const fail = () => reject(new Error(`tidegate did not start: ${log}`));
    const timer = setTimeout(fail, START_TIMEOUT_MS);
    const read = (chunk: Buffer) => {
      log += chunk.toString();
      const found = new RegExp(`${scheme}://(127\\.0\\.0\\.1:\\d+)\n`).exec(log);
      if (found) {
        clearTimeout(timer);
        resolve(`http://${found[1]}`);
      }
    };
    server.stdout?.on("data", read);
    server.stderr?.on("data", read);
    server.once("exit", fail);
  });
}

async function stop(server: ChildProcess): Promise<void> {
  if (server.exitCode !== null) return;
  const timer = setTimeout(() => server.kill("SIGKILL"), STOP_TIMEOUT_MS);
  const ended = once(server, "exit");
  server.kill("SIGTERM");
  await ended;
  clearTimeout(timer);
}

/** The address of a server that listens on a free port until the tests of the file end. */
export async function listening(server: Server): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  cleanups.push(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Takes connections, and never says anything. */
export async function startSilent(): Promise<string> {
  const sockets = new Set<Socket>();
  const server = createTcpServer((socket) => {
    sockets.add(socket.on("error", () => {}));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  cleanups.push(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Nobody listens there. (`fetch` itself refuses port 1.) */
export const NOBODY = "http://127.0.0.1:2";

export interface Seen {
  readonly method: string;
  readonly headers: IncomingMessage["headers"];
  readonly body: string;
}

/** An HTTP server that answers as the test says, one row after the other, and remembers the requests. */
export async function startScripted() {
  const script: [number, Record<string, string>][] = [];
  const seen: Seen[] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const body = Buffer.concat(chunks).toString();
      seen.push({ method: request.method ?? "", headers: request.headers, body });
      const [status, headers] = script.shift() ?? [500, {}];
      response.writeHead(status, headers).end();
    });
  });
  return { url: await listening(server), script, seen };
}

let people = 0;

/** A key that no other test has. */
export const somebody = (): string => `${process.pid}-${(people += 1)}-${Date.now()}`;
