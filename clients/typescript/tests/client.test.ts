// The client against a real server, and against servers that are not tidegate.

import assert from "node:assert/strict";
import { before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import {
  type Answer,
  Backoff,
  Client,
  type ClientOptions,
  DeadlineExceeded,
  type Denied,
  Permit,
  PermitLost,
  type Problem,
  Rejected,
  Retrier,
  Unavailable,
  UnexpectedAnswer,
  Unreachable,
  admit,
  retry,
} from "@tidegate/client";
import { NOBODY, somebody, startSilent, startTidegate } from "./support.js";

const LOG = ["2 per 1h sliding-log"];
let url: string;
let client: Client;

before(async () => {
  url = await startTidegate();
  client = new Client({ url, timeoutMs: 10_000 });
});

const allowed = (answer: Answer | Problem | undefined) => answer !== undefined && "allowed" in answer && answer.allowed;

function given(permit: Permit | Denied): Permit {
  assert.ok(permit.allowed);
  return permit;
}

test("checks a key under a policy", async () => {
  const subject = { policy: "login", key: somebody() };
  const first = await client.check(subject);
  const { policy, limit, remaining, retryAfterMs, decided, noRoom } = first;
  assert.deepEqual([first.allowed, policy, limit, remaining], [true, "login", 2, 1]);
  assert.deepEqual([retryAfterMs, decided, noRoom], [0, "exact", false]);
  assert.deepEqual(first.limits.map((line) => [line.algorithm, line.windowMs]), [
    ["sliding-log", 3_600_000],
    ["sliding-window", 86_400_000],
  ]);
  assert.equal((await client.check({ ...subject, cost: 0 })).remaining, 1);
  assert.ok((await client.check(subject)).allowed);
  const denied = await client.check(subject);
  assert.ok(!denied.allowed && denied.retryAfterMs !== null && denied.retryAfterMs > 0);
  assert.ok((await client.check({ ...subject, cost: -1 })).allowed);
  assert.ok((await client.check(subject)).allowed);
});

test("checks a key under given limits", async () => {
  const answer = await client.check({ key: somebody(), limits: LOG, cost: 3 });
  assert.deepEqual([answer.allowed, answer.policy, answer.retryAfterMs], [false, null, null]);
});

test("checks a request by its attributes", async () => {
  const attributes = { method: "GET", path: "/api/x?y=1", clientIp: "192.0.2.7", headers: { "x-api-key": somebody() } };
  const answer = await client.check({ attributes });
  assert.deepEqual([answer.policy, answer.remaining], ["api", 2]);
  assert.deepEqual(answer.limits.map((line) => line.mode), [null, "observe"]);
  const to = somebody();
  for (const descriptors of [{ kind: "sms", to }, [{ kind: "sms" }, { to }]]) {
    const { policy, allowed } = await client.check({ attributes: { domain: "messaging", descriptors } });
    assert.deepEqual([policy, allowed], ["messages", !Array.isArray(descriptors)]);
  }
  const nothing = await client.check({ attributes: { path: "/elsewhere" } });
  assert.deepEqual([nothing.allowed, nothing.policy, nothing.limits], [true, null, []]);
});

test("charges an id once", async () => {
  const subject = { policy: "login", key: somebody(), id: "a" };
  for (let times = 0; times < 5; times += 1) assert.equal((await client.check(subject)).remaining, 1);
});

test("charges a forced check above the limit", async () => {
  const subject = { policy: "login", key: somebody() };
  assert.ok((await client.check({ ...subject, cost: 5, force: true })).allowed);
  assert.ok(!(await client.check(subject)).allowed);
});

test("waits at the server instead of being denied", async () => {
  const subject = { key: somebody(), limits: ["1 per 300ms sliding-log"], maxWaitMs: 5000 };
  for (let times = 0; times < 3; times += 1) assert.ok((await client.check(subject)).allowed);
});

test("answers a batch in order", async () => {
  const [policy, key] = ["login", somebody()];
  const checks = [{ policy, key }, { key, limits: LOG, cost: 3 }, { policy, key, id: "a" }, { policy, key }];
  assert.deepEqual((await client.checkBatch(checks)).map(allowed), [true, false, true, false]);
  const [problem] = await client.checkBatch([{ policy, key, id: "a", cost: 2 }]);
  assert.ok(problem !== undefined && "status" in problem && problem.status === 409);
  assert.deepEqual(await client.checkBatch([]), []);
});

test("throws an exception that names the field for bad input", async () => {
  const rows: [() => Promise<unknown>, number, string][] = [
    [() => client.check({ policy: "nope", key: "a" }), 404, "policy"],
    [() => client.check({ policy: "login", key: "" }), 400, "key"],
    [() => client.check({ key: "a", limits: ["5 per 1 fortnight"] }), 400, "limits[0]"],
    [() => client.checkBatch([{ policy: "login", key: "a" }, { policy: "login", key: "a", id: "x".repeat(300) }]), 400, "checks[1].id"],
    [() => client.check({ policy: "jobs", key: "a" }), 409, "policy"],
    [() => client.permit({ policy: "login", key: "a" }), 409, "policy"],
  ];
  for (const [call, status, field] of rows) {
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof Rejected && error.name === "Rejected");
      assert.deepEqual([error.problem.status, error.problem.field], [status, field]);
      assert.ok(error.message.startsWith(`answer from ${url}/v1/`) && error.message.endsWith(` (field ${field})`));
      return true;
    });
  }
});

// Regression: fields with the names of the HTTP API were dropped, and the limit counted another key.
test("rejects unknown fields, and names the right one", async () => {
  const attributes = { client_ip: "192.0.2.7" } as object;
  const subject = { policy: "login", key: "a" };
  const rows: [() => unknown, string][] = [
    [() => client.check({ attributes }), "attributes: client_ip is unknown: use clientIp"],
    [() => client.checkBatch([{ attributes }]), "attributes: client_ip is unknown: use clientIp"],
    [() => client.check({ ...subject, max_wait_ms: 5 } as typeof subject), "check: max_wait_ms is unknown: use maxWaitMs"],
    [() => client.permit({ ...subject, ttl_ms: 5 } as typeof subject), "permit: ttl_ms is unknown: use ttlMs"],
    [() => client.permit({ ...subject, id: "a" } as typeof subject), "permit: id is unknown: use policy, key, attributes, limits, cost or ttlMs"],
    [() => new Client({ timeout_ms: 5 } as ClientOptions), "options: timeout_ms is unknown: use timeoutMs"],
    [() => new Client({ timeout: 5 } as ClientOptions), "options: timeout is unknown: use url, token, timeoutMs or fetch"],
    [() => new Retrier({ retries: 2 } as object), "retrier: retries is unknown: use backoff, budget, statuses or keysHonoured"],
    [() => new Backoff({ max_wait_ms: 2 } as object), "backoff: max_wait_ms is unknown: use maxWaitMs"],
    [() => retry(() => fetch(url), { retries: 2 } as object), "options: retries is unknown: use method, origin, retrier, failures, signal or sleep"],
  ];
  for (const [call, message] of rows) {
    await assert.rejects(async () => call(), { name: "TypeError", message });
  }
});

test("holds a permit and gives it back", async () => {
  const subject = { policy: "jobs", key: somebody() };
  const done = await given(await client.permit(subject)).hold(async (lost) => {
    const denied = await client.permit(subject);
    assert.ok(!denied.allowed);
    assert.deepEqual(denied.problem.violatedPolicies, ["jobs"]);
    assert.ok(denied.retryAfterMs !== null && denied.retryAfterMs > 0 && denied.retryAfterMs <= 60_000);
    assert.deepEqual(denied.fields.map(([name]) => name).sort(), ["ratelimit", "ratelimit-policy", "retry-after"]);
    assert.ok(!lost.aborted);
    return "done";
  });
  assert.equal(done, "done");
  const again = given(await client.permit({ ...subject, ttlMs: 20_000 }));
  assert.equal(await again.renew(), 20_000);
  assert.equal(await again.renew(30_000), 30_000);
  await again.release();
  await assert.rejects(again.release(), (error) => {
    assert.ok(error instanceof PermitLost);
    assert.ok(error.message.startsWith(`answer from ${url}/v1/permits/${again.id}: 404 `));
    return true;
  });
});

test("gives a permit back when the work fails", async () => {
  const subject = { policy: "jobs", key: somebody() };
  const failing = given(await client.permit(subject)).hold(() => {
    throw new Error("broken");
  });
  await assert.rejects(failing, /^Error: broken$/);
  await given(await client.permit(subject)).release();
});

// Regression: the work ran without a permit, and `lost` was not aborted.
test("does not hold a permit again", async () => {
  const acquire = async () => given(await client.permit({ policy: "jobs", key: somebody() }));
  const [held, released, ended] = [await acquire(), await acquire(), await acquire()];
  await held.hold(() => {});
  await released.release();
  await fetch(`${url}/v1/permits/${ended.id}`, { method: "DELETE" });
  await assert.rejects(ended.renew(), /^PermitLost: answer from /);
  for (const [permit, reason] of [[held, "was given back"], [released, "was given back"], [ended, "has ended"]] as const) {
    const again = permit.hold(() => assert.fail("held"));
    await assert.rejects(again, (error) => {
      assert.ok(error instanceof PermitLost && error.problem.status === 404);
      assert.match(error.message, new RegExp(`^the (lease of the )?permit ${reason}$`));
      return true;
    });
  }
});

// Regression: the inner `hold` gave the permit back, and the outer one went on while `lost` was not aborted.
test("holds a permit once at a time", async () => {
  const subject = { policy: "jobs", key: somebody() };
  const permit = given(await client.permit(subject));
  const again = () => permit.hold(() => assert.fail("held"));
  await permit.hold(async (lost) => {
    await assert.rejects(again(), /^Error: the permit is already held by another call of hold; /);
    assert.ok(!(await client.permit(subject)).allowed);
    assert.ok(!lost.aborted);
  });
  await assert.rejects(again(), /^PermitLost: .* was given back$/);

  const parallel = given(await client.permit(subject));
  const [first, second] = await Promise.allSettled(["a", "b"].map((name) => parallel.hold(() => name)));
  assert.deepEqual(first, { status: "fulfilled", value: "a" });
  assert.ok(second?.status === "rejected" && /already held/.test(String(second.reason)));
  await given(await client.permit(subject)).release();
});

// Regression: the work began, and the first renewal found that the lease had ended.
test("a permit whose lease has ended is not held", async () => {
  const permit = given(await client.permit({ policy: "jobs", key: somebody(), ttlMs: 20 }));
  await pause(30);
  await assert.rejects(permit.hold(() => assert.fail("held")), PermitLost);
  assert.ok(permit.lost.aborted);
});

// Regression: `lost` was not aborted while another client held the permit.
test("a released permit is lost", async () => {
  const subject = { policy: "jobs", key: somebody() };
  const permit = given(await client.permit(subject));
  await permit.hold(async (lost) => {
    await permit.release();
    await given(await client.permit(subject)).release();
    assert.ok(lost.aborted && lost.reason instanceof PermitLost);
  });
});

// The result of the work, such as a response whose body is not read yet, may depend on the signal.
test("the end of hold does not abort lost", async () => {
  const permit = given(await client.permit({ policy: "jobs", key: somebody() }));
  const lost = await permit.hold((lost) => lost);
  assert.ok(!lost.aborted);
});

test("renews a permit while it is held", async () => {
  const [policy, key, ttlMs] = ["jobs", somebody(), 1500];
  await given(await client.permit({ policy, key, ttlMs })).hold(async (lost) => {
    await pause(ttlMs * 1.7);
    assert.ok(!(await client.permit({ policy, key })).allowed);
    assert.ok(!lost.aborted);
  });
});

test("reports a lost permit", { timeout: 20_000 }, async () => {
  const permit = given(await client.permit({ policy: "jobs", key: somebody(), ttlMs: 600 }));
  await permit.hold(async (lost) => {
    // Not by `release`, which would stop the renewals.
    await fetch(`${url}/v1/permits/${permit.id}`, { method: "DELETE" });
    await new Promise((resolve) => lost.addEventListener("abort", resolve));
    assert.ok(lost.reason instanceof PermitLost);
  });
});

test("ends a lease by the caller's clock if renewals fail", { timeout: 20_000 }, async () => {
  const grant = { allowed: true, decided: "exact", limits: [], id: "x", ttl_ms: 100 };
  const flaky = new Client({
    fetch: async (_, init) => {
      if (init?.method === "POST") return Response.json(grant, { status: 201 });
      throw new TypeError("refused");
    },
  });
  await given(await flaky.permit({ policy: "jobs", key: "a" })).hold(async (lost) => {
    await new Promise((resolve) => lost.addEventListener("abort", resolve));
  });
});

/** A client that gets a permit. The answer to a renewal is up to the test. */
function leasing(ttlMs: number, renewal: (signal: AbortSignal) => Promise<Response>, grantAfterMs = 0): Client {
  const grant = { allowed: true, decided: "exact", limits: [], id: "x", ttl_ms: ttlMs };
  return new Client({
    timeoutMs: 10_000,
    fetch: async (_, init) => {
      if (init?.method === "DELETE") return new Response(null, { status: 204 });
      if (init?.method === "PUT") return renewal(init.signal as AbortSignal);
      await pause(grantAfterMs);
      return Response.json(grant, { status: 201 });
    },
  });
}

const JOB = { policy: "jobs", key: "a" };

// Regression: `lost` was aborted when the renewal timed out, and another client held the permit before that.
test("a permit is lost at the end of its lease while a renewal has no answer", { timeout: 20_000 }, async () => {
  let renewal: AbortSignal | undefined;
  let fail = (_: Error) => {};
  const stalled = leasing(1500, (signal) => {
    renewal = signal;
    return new Promise((_, reject) => (fail = reject));
  });
  await given(await stalled.permit(JOB)).hold(async (lost) => {
    await new Promise((resolve) => lost.addEventListener("abort", resolve));
    assert.ok(lost.reason instanceof PermitLost);
    assert.ok(renewal !== undefined && !renewal.aborted, "the renewal has not timed out");
    fail(new TypeError("the test ends"));
  });
});

// Regression: the lease was counted from the answer, but at the server it had begun before.
test("counts a lease from the sending of the request", async () => {
  const late = given(await leasing(50, () => assert.fail("renewed"), 100).permit(JOB));
  assert.ok(late.lost.aborted);
  await assert.rejects(late.hold(() => assert.fail("held")), PermitLost);

  const renewal = async () => {
    await pause(100);
    return Response.json({ id: "x", ttl_ms: 50 });
  };
  const renewed = given(await leasing(60_000, renewal).permit(JOB));
  assert.ok(!renewed.lost.aborted);
  await renewed.renew();
  assert.ok(renewed.lost.aborted);
});

test("throws DeadlineExceeded without an answer in time", async () => {
  const url = await startSilent();
  const silent = new Client({ url, timeoutMs: 100 });
  await assert.rejects(silent.check({ policy: "login", key: "a" }), (error) => {
    assert.ok(error instanceof DeadlineExceeded && error instanceof Unreachable);
    assert.equal(error.message, `no answer from ${url}/v1/check: timed out after 100 ms`);
    return true;
  });
});

test("adds the wait of a check to the timeout", async () => {
  const silent = new Client({ url: await startSilent(), timeoutMs: 100 });
  const asked = silent.check({ policy: "login", key: "a", maxWaitMs: 200 });
  await assert.rejects(asked, /^DeadlineExceeded: .*: timed out after 300 ms$/);
});

test("names the URL of an unreachable server", async () => {
  const asked = new Client({ url: NOBODY }).check({ policy: "login", key: "a" });
  await assert.rejects(asked, (error) => {
    assert.ok(error instanceof Unreachable && !(error instanceof DeadlineExceeded));
    assert.match(error.message, /^no answer from http:\/\/127\.0\.0\.1:2\/v1\/check: ./);
    return true;
  });
});

// Regression: the reason ended with a line break.
test("a failed handshake is described in one line", async () => {
  const encrypted = new Client({ url: url.replace("http:", "https:"), timeoutMs: 10_000 });
  await assert.rejects(encrypted.check({ key: "a", limits: LOG }), ({ message }: Error) => {
    assert.match(message, /^no answer from https:/);
    assert.equal(message, message.trim());
    assert.ok(!message.includes("\n"), message);
    return true;
  });
});

const ANSWER = { allowed: true, policy: null, limit: 1, remaining: 1, retry_after_ms: 0, reset_after_ms: 0 };
const SOUND = { ...ANSWER, decided: "exact", limits: [] };
const answering = (status: number, body: string | null, options: ClientOptions = {}) =>
  new Client({ url: "http://limiter", fetch: async () => new Response(body, { status }), ...options });

test("rejects responses that are not from tidegate", async () => {
  const rows: [number, string, string][] = [
    [200, "<html>", "status 200 with a body that is not JSON"],
    [200, "[]", "expected a JSON object"],
    [200, "null", "expected a JSON object"],
    [200, JSON.stringify(ANSWER), "`decided` is missing from the answer"],
    [200, JSON.stringify({ ...SOUND, allowed: "yes" }), "`allowed` of the answer is not of type boolean"],
    [200, JSON.stringify({ ...SOUND, remaining: true }), "`remaining` of the answer is not of type number"],
    [200, JSON.stringify({ ...SOUND, limits: 1 }), "`limits` of the answer is not a list"],
    [200, JSON.stringify({ ...SOUND, limits: [1] }), "expected a JSON object"],
    [302, "", "unexpected status 302"],
    [502, "Bad Gateway", "status 502 without a problem document: Bad Gateway"],
    [404, "{}", "status 404 without a problem document: {}"],
    [502, "", "status 502 without a problem document"],
    [502, " \r\n", "status 502 without a problem document"],
    [502, "\r\n one \r\ntwo", "status 502 without a problem document: one"],
    [
      502,
      "a\x1b[31m\x00\u202eb\u2028c d\u00e9\u{1f600}",
      "status 502 without a problem document: a\\u{1b}[31m\\u{0}\\u{202e}b\\u{2028}c dé😀",
    ],
    [502, "😀".repeat(200), `status 502 without a problem document: ${"😀".repeat(200)}`],
    [502, "😀".repeat(201), `status 502 without a problem document: ${"😀".repeat(200)}...`],
  ];
  for (const [status, body, message] of rows) {
    await assert.rejects(answering(status, body).check({ policy: "login", key: "a" }), (error) => {
      assert.ok(error instanceof UnexpectedAnswer);
      assert.equal(error.message, `unexpected answer from http://limiter/v1/check: ${message}`);
      return true;
    });
  }
});

test("shows only plain text of other servers", async () => {
  const rows: [kind: string | null, shown: string][] = [
    ["text/html", ""],
    ["application/json", ""],
    ["text/plainer", ""],
    [null, ""],
    ["Text/Plain ; charset=latin-1", ": caf\ufffd"],
  ];
  for (const [kind, shown] of rows) {
    // Bytes, because a text gets a content type.
    const body = Uint8Array.of(0x63, 0x61, 0x66, 0xe9);
    const headers: Record<string, string> = kind === null ? {} : { "content-type": kind };
    const client = new Client({ url: "http://limiter", fetch: async () => new Response(body, { status: 400, headers }) });
    await assert.rejects(client.check({ policy: "login", key: "a" }), {
      name: "UnexpectedAnswer",
      message: `unexpected answer from http://limiter/v1/check: status 400 without a problem document${shown}`,
    });
  }
});

// Regression: the message did not have the answer of the gRPC port, which names the mistake.
test("shows the answer of the gRPC port", async () => {
  const client = new Client({ url: await startTidegate("grpc"), timeoutMs: 10_000 });
  const error = { message: /document: this is the gRPC port of tidegate, .* the port of --http$/ };
  await assert.rejects(client.check({ policy: "login", key: "a" }), error);
});

test("ignores unknown fields", async () => {
  assert.ok((await answering(200, JSON.stringify({ ...SOUND, new: 1 })).check({ policy: "login", key: "a" })).allowed);
});

test("throws Unavailable for a permit if the store is unavailable", async () => {
  const problem = JSON.stringify({ type: "about:blank", title: "t", status: 503, detail: "d" });
  await assert.rejects(answering(503, problem).permit({ policy: "jobs", key: "a" }), (error) => {
    assert.ok(error instanceof Unavailable);
    assert.equal(error.message, "answer from http://limiter/v1/permits: 503 t: d");
    return true;
  });
});

test("sends the token", async () => {
  const seen: unknown[] = [];
  const asking = new Client({
    url: "http://limiter/",
    token: "s3 cret",
    fetch: async (input, init) => {
      seen.push(input, new Headers(init?.headers).get("authorization"));
      return Response.json(SOUND);
    },
  });
  await asking.check({ policy: "login", key: "a" });
  assert.deepEqual(seen, ["http://limiter/v1/check", "Bearer s3 cret"]);
});

test("takes the URL alone", async () => {
  for (const settings of [NOBODY, new URL(NOBODY), { url: NOBODY }]) {
    await assert.rejects(new Client(settings).check({ policy: "login", key: "a" }), /no answer from http:\/\/127\.0\.0\.1:2\/v1\/check: /);
  }
});

test("rejects a misspelt onFailure before anything fails", async () => {
  const sound = new Client({ fetch: async () => Response.json(SOUND) });
  const admitted = (onFailure: unknown) => admit(sound, { policy: "login", key: "a" }, onFailure as "allow");
  for (const [value, shown] of [["denny", '"denny"'], [undefined, "undefined"], [null, "null"], ["", '""']]) {
    await assert.rejects(admitted(value), new RegExp(`^RangeError: onFailure must be "allow" or "deny", not ${shown}$`));
  }
  for (const value of ["allow", "deny"]) assert.equal((await admitted(value)).refusal, null);
});

test("names invalid settings", () => {
  assert.throws(() => new Client("localhost:8080"), /^RangeError: url must/);
  const withPassword = (url: string) => () => new Client(url);
  assert.throws(withPassword("http://u:secret@localhost:8080"), /^RangeError: url must not have a user or password, which fetch rejects: use http:\/\/localhost:8080 and token$/);
  assert.throws(withPassword("ftp://u:secret@localhost"), /^RangeError: url must start with http:\/\/ or https:\/\/, not ftp:\/\/localhost$/);
  assert.throws(withPassword("u:secret@localhost"), /^RangeError: url must start with http:\/\/ or https:\/\/, not localhost$/);
  assert.throws(() => new Client("localhost:8080?key=secret"), /^RangeError: url must not have a query or a fragment$/);
  assert.throws(() => new Client({ url: "localhost:8080" }), /^RangeError: url must/);
  // Regression: the path was appended to the query, or was part of the fragment.
  for (const end of ["/?token=secret", "#secret", "/?"]) {
    for (const options of [`http://localhost:8080${end}`, new URL(`http://localhost:8080${end}`)]) {
      assert.throws(() => new Client(options), /^RangeError: url must not have a query or a fragment$/);
    }
  }
  assert.throws(() => new Client({ timeoutMs: 0 }), /^RangeError: timeoutMs must/);
  assert.throws(() => new Client({ timeoutMs: NaN }), /^RangeError: timeoutMs must/);
  const rows: [object, string][] = [
    [{ url: 5 }, "url must be a string, not number"],
    [{ token: null }, "token must be a string, not null"],
    [{ token: ["s3cret"] }, "token must be a string, not array"],
    [{ timeoutMs: "100" }, "timeoutMs must be a number, not string"],
    [{ fetch: "fetch" }, "fetch must be a function, not string"],
    [[], "options must be an object, not array"],
  ];
  for (const [options, message] of rows) assert.throws(() => new Client(options), { name: "TypeError", message });
});

// Regression: the client ignored `{ token }` after a URL, so every call failed with 401.
test("rejects a second argument of Client", () => {
  const message = "options must be one object: new Client({ url, token })";
  for (const first of ["http://localhost:8080", { url: "http://localhost:8080" }, undefined]) {
    for (const second of [{ token: "s3cret" }, "s3cret", undefined]) {
      assert.throws(() => Reflect.construct(Client, [first, second]), { name: "TypeError", message });
    }
  }
});

// Regression: the client used the default URL, for example if the variable of the environment was not set.
test("rejects a URL that is undefined", () => {
  const help = "for the default, http://127.0.0.1:8080, leave it out";
  assert.throws(() => new Client({ url: undefined } as never), { name: "TypeError", message: `url must be a string, not undefined; ${help}` });
  assert.throws(() => new Client(undefined as never), { name: "TypeError", message: `options must be a URL or an object, not undefined; ${help}` });
  for (const create of [() => new Client(), () => new Client({}), () => new Client({ timeoutMs: 50 })]) assert.ok(create());
});

// Regression: such a token was an unreachable server, so `admit` with "allow" never denied again. The message showed the token.
test("rejects a token that cannot be sent", () => {
  for (const token of ["", "supersecret\n", "super\nsecret", " supersecret", "s\u00e9cret"]) {
    assert.throws(() => new Client({ token }), (error) => {
      assert.ok(error instanceof RangeError && error.message.startsWith("token must"));
      assert.ok(!error.message.includes("cret"));
      return true;
    });
  }
});

// Regression: JSON has no NaN and no Infinity. Both became null, and the server charged the default of 1.
test("names numbers that are not whole, and arguments that are not objects", async () => {
  for (const value of [NaN, Infinity, 1.5]) {
    const rows: [() => Promise<unknown>, string][] = [
      [() => client.check({ policy: "login", key: "a", cost: value }), "cost"],
      [() => client.check({ policy: "login", key: "a", maxWaitMs: value }), "maxWaitMs"],
      [() => client.checkBatch([{ policy: "login", key: "a", cost: value }]), "cost"],
      [() => client.permit({ policy: "jobs", key: "a", ttlMs: value }), "ttlMs"],
    ];
    for (const [call, name] of rows) {
      await assert.rejects(call, new RegExp(`^RangeError: ${name} must be a whole number, not ${value}$`));
    }
  }
  for (const [value, kind] of [["2", "string"], [2n, "bigint"], [null, "null"]]) {
    const asked = client.check({ policy: "login", key: "a", cost: value as never });
    await assert.rejects(asked, { name: "TypeError", message: `cost must be a number, not ${kind}` });
  }
  await assert.rejects(client.check([] as never), /^TypeError: check must be an object, not array$/);
  await assert.rejects(client.check(undefined as never), /^TypeError: check must be an object, not undefined$/);
  await assert.rejects(client.checkBatch({} as never), /^TypeError: checks must be an array/);
});

// Regression: these were sent. The server rejected them, so callers that fail open had no limit.
test("names invalid arguments before they are sent", async () => {
  const missing = "policy and key, attributes, or key and limits are required";
  const login = { policy: "login", key: "a" };
  const rows: ["check" | "permit", object, "TypeError" | "RangeError", string][] = [
    ["check", { ...login, key: 42 }, "TypeError", "key must be a string, not number"],
    ["check", { ...login, key: undefined }, "TypeError", "key must be a string, not undefined"],
    ["check", { ...login, key: undefined, attributes: { path: "/" } }, "TypeError", "key must be a string, not undefined"],
    ["check", { policy: "login" }, "TypeError", missing],
    ["check", { key: "a" }, "TypeError", missing],
    ["check", { key: "a", limits: undefined }, "TypeError", missing],
    ["check", { limits: LOG }, "TypeError", missing],
    ["check", {}, "TypeError", missing],
    ["check", { ...login, policy: 42 }, "TypeError", "policy must be a string, not number"],
    ["check", { key: "a", limits: "1 per 1s" }, "TypeError", 'limits must be an array of strings, such as ["5 per 1s"], not string'],
    ["check", { key: "a", limits: [5] }, "TypeError", 'limits must be an array of strings, such as ["5 per 1s"], but contains number'],
    ["check", { ...login, id: 7 }, "TypeError", "id must be a string, not number"],
    ["check", { ...login, force: "no" }, "TypeError", "force must be a boolean, not string"],
    ["check", { ...login, cost: 1e13 }, "RangeError", "cost must be from -1000000000000 to 1000000000000, not 10000000000000"],
    ["check", { ...login, cost: -1e12 - 1 }, "RangeError", "cost must be from -1000000000000 to 1000000000000, not -1000000000001"],
    ["check", { ...login, maxWaitMs: -20_000 }, "RangeError", "maxWaitMs must be from 0 to 60000, not -20000"],
    ["check", { ...login, maxWaitMs: 2 ** 40 }, "RangeError", "maxWaitMs must be from 0 to 60000, not 1099511627776"],
    ["permit", { ...login, key: 42 }, "TypeError", "key must be a string, not number"],
    ["permit", { ...login, cost: 1e13 }, "RangeError", "cost must be from 1 to 1000000000000, not 10000000000000"],
    ["permit", { ...login, cost: 0 }, "RangeError", "cost must be from 1 to 1000000000000, not 0"],
    ["permit", { ...login, ttlMs: 0 }, "RangeError", "ttlMs must be at least 1, not 0"],
  ];
  for (const [method, request, name, message] of rows) {
    await assert.rejects(client[method](request as never), { name, message });
    if (method === "check") await assert.rejects(client.checkBatch([request as never]), { name, message });
  }
  const permit = given(await client.permit({ policy: "jobs", key: somebody() }));
  await assert.rejects(permit.renew(0), { name: "RangeError", message: "ttlMs must be at least 1, not 0" });
  await permit.release();
});

test("sends the largest numbers", async () => {
  const subject = () => ({ key: somebody(), limits: LOG });
  assert.ok(!(await client.check({ ...subject(), cost: 1e12 })).allowed);
  assert.ok((await client.check({ ...subject(), cost: -1e12 })).allowed);
  assert.ok((await client.check({ ...subject(), maxWaitMs: 60_000 })).allowed);
});

// Regression: such a value was an unreachable server.
test("throws for a value that JSON cannot express", async () => {
  const headers = { "x-api-key": 1n } as never;
  await assert.rejects(admit(client, { attributes: { headers } }, "allow"), /^TypeError: .*BigInt/);
});
