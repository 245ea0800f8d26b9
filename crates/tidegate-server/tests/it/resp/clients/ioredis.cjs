// Typical use of ioredis. Arguments: the port of a server without a secret, the port of one with a
// secret, the secret.
const assert = require("node:assert");
const module_ = require("ioredis");
const Redis = module_.Redis ?? module_.default ?? module_;

const [openPort, closedPort, secret] = [Number(process.argv[2]), Number(process.argv[3]), process.argv[4]];

async function check(client, key) {
  assert.equal(await client.ping(), "PONG");
  const first = await client.call("TG.CHECK", "login", key);
  assert.deepEqual(first, [1, 2, 1, 0, 3600000, "login", "exact"]);
  const pipeline = client.pipeline();
  for (let asked = 0; asked < 50; asked++) pipeline.call("TG.CHECK", "login", key);
  const replies = await pipeline.exec();
  assert.deepEqual(replies.map(([error, reply]) => [error, reply[0]]), [[null, 1], ...Array(49).fill([null, 0])]);
  assert.deepEqual(await client.call("CL.THROTTLE", `io:${key}`, 15, 30, 60), [0, 16, 15, -1, 2]);
  assert.equal((await client.call("TG.CHECK", "login", key, "COST", 3))[3], null);
  await assert.rejects(client.call("TG.CHECK", "nobody", key), /there is no policy `nobody`/);
  assert.equal(await client.quit(), "OK");
}

async function main() {
  await check(new Redis({ port: openPort }), "default");
  await check(new Redis(`redis://127.0.0.1:${openPort}/0`), "url");
  await check(new Redis({ port: closedPort, password: secret, connectionName: "me" }), "password");
  await check(new Redis({ port: closedPort, username: "me", password: secret, enableAutoPipelining: true }), "user");
  const stranger = new Redis({ port: closedPort, retryStrategy: null, lazyConnect: true });
  stranger.on("error", () => {});
  await assert.rejects(stranger.connect().then(() => stranger.ping()), /NOAUTH|closed/i);
  stranger.disconnect();
  console.log("done");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
