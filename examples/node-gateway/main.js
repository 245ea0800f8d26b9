// Runs the gateway, as the environment says:
//
//   UPSTREAM              where requests go, e.g. http://127.0.0.1:5000
//   PORT                  where to listen, 8000 unless set
//   TIDEGATE_URL          where tidegate is, http://127.0.0.1:8080 unless set
//   TIDEGATE_TOKEN        its secret, if it wants one
//   TIDEGATE_ON_FAILURE   allow (the default) or deny: what happens while it does not answer
//   TIDEGATE_DEADLINE_MS  how long that takes to find out, 50 unless set

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

if (UPSTREAM === undefined) throw new Error("UPSTREAM must say where requests go, e.g. http://127.0.0.1:5000");
if (onFailure !== "allow" && onFailure !== "deny") {
  throw new Error(`TIDEGATE_ON_FAILURE must be allow or deny, not ${onFailure}`);
}

const client = new Client({ url, timeoutMs: Number(deadlineMs), ...(token === undefined ? {} : { token }) });
const gateway = createGateway({ client, onFailure, upstream: new URL(UPSTREAM) });
gateway.listen(Number(PORT), "127.0.0.1", () => console.log(`http://127.0.0.1:${PORT} -> ${UPSTREAM}`));
