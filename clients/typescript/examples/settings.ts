// Settings of the examples, from the environment.
//
// TIDEGATE_URL          the address of tidegate; default: http://127.0.0.1:8080
// TIDEGATE_TOKEN        its secret, if it requires one
// TIDEGATE_ON_FAILURE   allow (the default) or deny requests if tidegate makes no decision: no answer
//                       in time, or an error such as a wrong token or an unknown policy
// TIDEGATE_DEADLINE_MS  the time that tidegate has to answer; default: 50
// PORT                  the port to listen on; default: 3000

import { pathToFileURL } from "node:url";

import { Client } from "@tidegate/client";

export type OnFailure = "allow" | "deny";

export function settings(env = process.env): { client: Client; onFailure: OnFailure; port: number } {
  const { TIDEGATE_URL: url, TIDEGATE_TOKEN: token } = env;
  const onFailure = env["TIDEGATE_ON_FAILURE"] ?? "allow";
  if (onFailure !== "allow" && onFailure !== "deny") {
    throw new RangeError(`TIDEGATE_ON_FAILURE must be allow or deny, not ${onFailure}`);
  }
  const timeoutMs = Number(env["TIDEGATE_DEADLINE_MS"] ?? 50);
  const client = new Client({ timeoutMs, ...(url === undefined ? {} : { url }), ...(token === undefined ? {} : { token }) });
  return { client, onFailure, port: Number(env["PORT"] ?? 3000) };
}

/** Whether the module is the program, not part of one. */
export function isMain(moduleUrl: string): boolean {
  return moduleUrl === pathToFileURL(process.argv[1] ?? "").href;
}
