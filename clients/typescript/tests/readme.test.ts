// The README's blocks, run against a real server.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";

import { TYPESCRIPT, startTidegate } from "./support.js";

/** A block that has not ended after this time hangs. */
const HANGS_AFTER_MS = 60_000;

/** A failed assertion is an error, not a line on stderr. */
const STRICT_ASSERT = "console.assert = (condition) => { if (!condition) throw new Error('assertion failed'); };\n";

/** Runs a script as users do, in a process that must end by itself. */
function run(file: string): Promise<void> {
  return new Promise((resolve, reject) => {
    execFile(process.execPath, [file], { timeout: HANGS_AFTER_MS }, (error, _stdout, stderr) => {
      if (!error) resolve();
      else reject(new Error(error.killed ? `${file} does not end` : `${file}: ${stderr}`));
    });
  });
}

test("runs the README's blocks to their end", async () => {
  const url = await startTidegate();
  const readme = readFileSync(`${TYPESCRIPT}README.md`, "utf8");
  const blocks = [...readme.matchAll(/^```js\n([^]*?)^```$/gm)].map(([, block = ""]) => block);
  assert.equal(blocks.length, 4);
  const home = `${TYPESCRIPT}build/readme/`;
  mkdirSync(home, { recursive: true });
  for (const [number, block] of blocks.entries()) {
    const file = `${home}${number}.js`;
    const script = block.replaceAll("http://127.0.0.1:8080", url).replace("timeoutMs: 250", "timeoutMs: 10_000");
    writeFileSync(file, STRICT_ASSERT + script);
    await run(file);
  }
});
