// A Hono service whose requests tidegate limits. In clients/typescript of a clone:
//
//   tidegate serve --config ../../examples/node-gateway/tidegate.yaml
//   npm ci && npm run examples && node build/examples/hono.js
//
// It works as the Express example does, on web standards: the middleware runs wherever Hono
// does. Only the client's address depends on the platform.

import { getConnInfo } from "@hono/node-server/conninfo";
import { serve } from "@hono/node-server";
import { type Context, Hono, type MiddlewareHandler } from "hono";

import { Client, admit } from "@tidegate/client";
import { isMain, settings, type OnFailure } from "./settings.js";

/** Middleware. `headers` are those that policies make keys of; no others leave the service. */
export function rateLimit(
  client: Client,
  onFailure: OnFailure,
  addressOf: (context: Context) => string | undefined,
  headers = ["x-api-key"],
): MiddlewareHandler {
  return async (context, next) => {
    const url = new URL(context.req.url);
    const clientIp = addressOf(context);
    const sent = headers.map((name) => [name, context.req.header(name)]).filter(([, value]) => value !== undefined);
    const attributes = {
      method: context.req.method,
      // The path by which Hono chooses the handler.
      path: context.req.path + url.search,
      host: url.host,
      ...(clientIp === undefined ? {} : { clientIp }),
      headers: Object.fromEntries(sent) as Record<string, string>,
    };
    const { refusal, fields, failure } = await admit(client, { attributes }, onFailure);
    if (failure !== null) console.warn(`no decision by tidegate, on_failure is ${onFailure}: ${failure.message}`);
    if (refusal !== null) {
      return new Response(refusal.body, { status: refusal.status, headers: Object.fromEntries(refusal.fields) });
    }
    await next();
    for (const [name, value] of fields) context.header(name, value);
    return undefined;
  };
}

export function createApp(client: Client, onFailure: OnFailure): Hono {
  const app = new Hono();
  // The peer's address: clients can send any X-Forwarded-For.
  app.use(rateLimit(client, onFailure, (context) => getConnInfo(context).remote.address));
  app.get("/api/hello", (context) => context.json({ hello: "world" }));
  app.post("/login", (context) => context.json({ login: "tried" }));
  return app;
}

if (isMain(import.meta.url)) {
  const { client, onFailure, port } = settings();
  const { fetch } = createApp(client, onFailure);
  serve({ fetch, hostname: "127.0.0.1", port }, () => console.log(`http://127.0.0.1:${port}`));
}
