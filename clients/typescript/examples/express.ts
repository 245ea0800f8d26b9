// An Express service whose requests tidegate limits. In clients/typescript of a clone:
//
//   tidegate serve --config ../../examples/node-gateway/tidegate.yaml
//   npm ci && npm run examples && node build/examples/express.js
//
// Every request is checked before it is handled. A denied request gets the fields and the
// document that tidegate would send through a gateway. The response to an admitted request
// carries the fields too.

import express, { type Express, type RequestHandler } from "express";

import { Client, admit } from "@tidegate/client";
import { isMain, settings, type OnFailure } from "./settings.js";

/** Middleware. `headers` are those that policies make keys of; no others leave the service. */
export function rateLimit(client: Client, onFailure: OnFailure, headers = ["x-api-key"]): RequestHandler {
  return async (request, response, next) => {
    const sent = headers.map((name) => [name, request.get(name)]).filter(([, value]) => value !== undefined);
    const attributes = {
      method: request.method,
      path: pathOf(request.originalUrl),
      // The peer's address. Behind your own proxy, set `trust proxy` to its address, never to
      // `true`: clients can send any X-Forwarded-For.
      ...(request.ip === undefined ? {} : { clientIp: request.ip }),
      ...(request.host === undefined ? {} : { host: request.host }),
      headers: Object.fromEntries(sent) as Record<string, string>,
    };
    const { refusal, fields, failure } = await admit(client, { attributes }, onFailure);
    if (failure !== null) console.warn(`no decision by tidegate, on_failure is ${onFailure}: ${failure.message}`);
    for (const [name, value] of refusal?.fields ?? fields) response.setHeader(name, value);
    if (refusal === null) next();
    else response.status(refusal.status).end(refusal.body);
  };
}

/** Removes scheme and host: Express also routes `GET http://host/login HTTP/1.1`. */
function pathOf(target: string): string {
  return target.replace(/^https?:\/\/[^/?#]*/i, "");
}

export function createApp(client: Client, onFailure: OnFailure): Express {
  const app = express();
  // Otherwise /LOGIN and /login/ would reach the handler of /login, but not match it in tidegate.
  app.enable("case sensitive routing");
  app.enable("strict routing");
  app.use(rateLimit(client, onFailure));
  app.get("/api/hello", (_request, response) => void response.json({ hello: "world" }));
  app.post("/login", (_request, response) => void response.json({ login: "tried" }));
  return app;
}

if (isMain(import.meta.url)) {
  const { client, onFailure, port } = settings();
  createApp(client, onFailure).listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${port}`));
}
