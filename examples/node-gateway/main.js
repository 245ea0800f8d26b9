// Runs the gateway. Environment variables:
//
//   UPSTREAM              URL that requests are forwarded to, e.g. http://127.0.0.1:5000
//   PORT                  port to listen on; default: 8000
//   TIDEGATE_URL          URL of tidegate; default: http://127.0.0.1:8080
//   TIDEGATE_TOKEN        token of tidegate, if it requires one
//   TIDEGATE_ON_FAILURE   allow (default) or deny: what happens to requests if tidegate makes no decision: no
//                         answer in time, or an error such as a wrong token or an unknown policy
//   TIDEGATE_DEADLINE_MS  how long to wait for an answer; default: 50

import { Client } from "@tidegate/client";

import { createGateway } from "./gateway.js";

const {
  UPSTREAM,
  PORT = "8000",
  TIDEGATE_URL: url = "http://127.0.0.1:8080",
  TIDEGATE_TOKEN: token,
  TIDEGATE_ON_FAILURE: onFailure = "allow",
  TIDEGATE_DEADLINE_MS: deadlineMs = "50",
} = process.env;

if (UPSTREAM === undefined) throw new Error("UPSTREAM must be set, e.g. to http://127.0.0.1:5000");
if (onFailure !== "allow" && onFailure !== "deny") {
  throw new Error(`TIDEGATE_ON_FAILURE must be allow or deny, not ${onFailure}`);
}

const client = new Client({ url, timeoutMs: Number(deadlineMs), ...(token === undefined ? {} : { token }) });
const gateway = createGateway({ client, onFailure, upstream: new URL(UPSTREAM) });
gateway.listen(Number(PORT), "127.0.0.1", () => console.log(`http://127.0.0.1:${PORT} -> ${UPSTREAM}`));
