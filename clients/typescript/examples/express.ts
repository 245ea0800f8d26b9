// An Express service whose requests tidegate limits.
//
//   tidegate serve --config tidegate.yaml
//   npm test && node build/examples/express.js
//
// Every request is asked about before it is handled. A denial is answered here, with the
// fields and the document that tidegate would send through a gateway; what is allowed goes
// on, and its response carries the fields too.

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
      // The peer's address. Behind a proxy of your own set `trust proxy` to its address, never to
      // `true`: X-Forwarded-For is whatever a client writes.
      ...(request.ip === undefined ? {} : { clientIp: request.ip }),
      ...(request.host === undefined ? {} : { host: request.host }),
      headers: Object.fromEntries(sent) as Record<string, string>,
    };
    const { refusal, fields, failure } = await admit(client, { attributes }, onFailure);
    if (failure !== null) console.warn(`tidegate does not answer, on failure ${onFailure}: ${failure.message}`);
    for (const [name, value] of refusal?.fields ?? fields) response.setHeader(name, value);
    if (refusal === null) next();
    else response.status(refusal.status).end(refusal.body);
  };
}

/** Without scheme and host: Express finds the handler of `GET http://host/login HTTP/1.1` too. */
function pathOf(target: string): string {
  return target.replace(/^https?:\/\/[^/?#]*/i, "");
}

export function createApp(client: Client, onFailure: OnFailure): Express {
  const app = express();
  // Else /LOGIN and /login/ would reach the handler of /login, but be no /login to tidegate.
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
