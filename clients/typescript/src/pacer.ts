/** The most servers that are paced. The one used least recently is evicted. */
const MAX_ORIGINS = 1024;

interface Pace {
  readonly gapMs: number;
  readonly nextAt: number;
}

/** Spaces out requests to a server while little of its limit remains. */
export class Pacer {
  readonly #maxPauseMs: number;
  readonly #clock: () => number;
  readonly #chance: () => number;
  readonly #origins = new Map<string, Pace>();

  constructor(maxPauseMs: number, clock: () => number = () => performance.now(), chance: () => number = Math.random) {
    this.#maxPauseMs = maxPauseMs;
    this.#clock = clock;
    this.#chance = chance;
  }

  /** The number of servers that are paced. */
  get size(): number {
    return this.#origins.size;
  }

  /** Returns the wait before a request that is to be sent now. */
  pauseMs(origin: string): number {
    const pace = this.#origins.get(origin);
    if (pace === undefined) return 0;
    const now = this.#clock();
    // Concurrent callers are sent one gap apart, but none waits longer than the longest pause.
    const starts = Math.min(Math.max(now, pace.nextAt), now + this.#maxPauseMs);
    this.#origins.set(origin, { gapMs: pace.gapMs, nextAt: starts + pace.gapMs });
    return starts - now;
  }

  /** Records the pause that a response requests. */
  observe(origin: string, paceMs: number | null): void {
    const before = this.#origins.get(origin);
    this.#origins.delete(origin);
    if (paceMs === null || paceMs === 0) return;
    const gapMs = Math.min(paceMs, this.#maxPauseMs) * (1 - this.#chance() / 2);
    this.#origins.set(origin, { gapMs, nextAt: Math.max(before?.nextAt ?? 0, this.#clock() + gapMs) });
    const oldest = this.#origins.keys().next();
    if (this.#origins.size > MAX_ORIGINS && !oldest.done) this.#origins.delete(oldest.value);
  }
}
