// The requests of the last minutes as short intervals: first those that the server sampled before
// the page was opened, then the differences between two answers of the server.
//
// Times are the server's monotonic uptime plus an offset that is fixed when the page first hears
// from that server process. A clock that steps, here or there, does not move a point.
"use strict";

const MOST = 300;              // intervals kept: five minutes
export const LONG_SECONDS = 3;  // a longer pause between two answers is filled from the server's samples

/** The kept intervals, each `{time, seconds, requests, latency, keys}`. A gap has only the first two. */
export class Intervals {
  #offset = 0;
  #last = null;                // the last answer
  all = [];

  /** Adds the time since the last answer. `history` returns the answer of `/admin/v1/history`. */
  async add(now, history) {
    const before = this.#last;
    const isRestart = before !== null
      && (now.started_seconds !== before.started_seconds || now.uptime_seconds < before.uptime_seconds);
    if (before === null || isRestart) this.#begin(now);
    const since = isRestart || before === null ? -1 : before.uptime_seconds;
    const seconds = now.uptime_seconds - since;
    if (since < 0 || seconds > LONG_SECONDS) {
      const { samples, totals } = await history();
      for (const sample of samples) {
        if (sample.uptime_seconds <= since) continue;
        this.#push({ ...sample, keys: sample.tracked_keys });
      }
      // The next interval begins at the end of the last sample, so that none is left out.
      this.#last = { ...totals, started_seconds: now.started_seconds };
      return;
    }
    if (seconds > 0) {
      this.#push({
        uptime_seconds: now.uptime_seconds, length_seconds: seconds,
        requests: increases(now.requests, before.requests),
        latency: now.latency.counts.map((count, index) => Math.max(0, count - before.latency.counts[index])),
        keys: now.store.tracked_keys,
      });
    }
    this.#last = now;
  }

  /** Forgets everything. */
  clear() {
    [this.#last, this.all] = [null, []];
  }

  /** Returns the time of an answer on the axis of the charts. */
  timeOf(now) {
    return now.uptime_seconds + this.#offset;
  }

  /** Begins with another server process, after a gap if there was one before it. */
  #begin(now) {
    this.#offset = Date.now() / 1000 - now.uptime_seconds;
    const newest = this.all.at(-1)?.time;
    if (newest === undefined) return;
    // Its first samples may be older than the last answer of its predecessor.
    this.#offset = Math.max(this.#offset, newest + 1);
    this.all.push({ time: newest + 0.5, seconds: 0 });
  }

  #push({ uptime_seconds: uptime, length_seconds: seconds, requests, latency, keys }) {
    const time = uptime + this.#offset;
    if (seconds <= 0 || time <= (this.all.at(-1)?.time ?? -Infinity)) return;
    this.all.push({ time, seconds, requests, latency, keys });
    if (this.all.length > MOST) this.all.shift();
  }
}

/** Returns the policies with new requests. */
function increases(now, before) {
  const old = new Map(before.map((one) => [one.policy, one]));
  const grown = (one, outcome) => Math.max(0, one[outcome] - (old.get(one.policy)?.[outcome] ?? 0));
  return now.map((one) => ({
    policy: one.policy, allowed: grown(one, "allowed"), denied: grown(one, "denied"), would_deny: grown(one, "would_deny"),
  })).filter((one) => total(one) > 0);
}

export const total = (requests) => requests.allowed + requests.denied + requests.would_deny;

/** Returns a rate per second: of one policy, or of all if `policy` is null. Null in a gap. */
export function rateOf(interval, count, policy = null) {
  if (!interval.requests) return null;
  const sum = interval.requests.reduce((all, one) => all + (policy === null || one.policy === policy ? count(one) : 0), 0);
  return sum / interval.seconds;
}

/** Returns the upper bound of a quantile of timed decisions; undefined if there are none. */
export function quantile(counts, bounds, part) {
  const all = counts.reduce((a, b) => a + b, 0);
  if (!all) return undefined;
  let upTo = 0;
  return [...bounds, 10][counts.findIndex((count) => (upTo += count) >= all * part)];
}
