// The README's blocks, run against a real server.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import { TYPESCRIPT, startTidegate } from "./support.js";

test("the README's blocks run", async (context) => {
  const url = await startTidegate();
  const readme = readFileSync(`${TYPESCRIPT}README.md`, "utf8");
  const blocks = [...readme.matchAll(/^```js\n([^]*?)^```$/gm)].map(([, block = ""]) => block);
  assert.equal(blocks.length, 4);
  context.mock.method(console, "log", () => {});
  context.mock.method(console, "assert", (condition: unknown) => assert.ok(condition));
  const home = `${TYPESCRIPT}build/readme/`;
  mkdirSync(home, { recursive: true });
  for (const [number, block] of blocks.entries()) {
    const file = `${home}${number}.js`;
    writeFileSync(file, block.replaceAll("http://127.0.0.1:8080", url).replace("timeoutMs: 250", "timeoutMs: 10_000"));
    await import(pathToFileURL(file).href);
  }
});
