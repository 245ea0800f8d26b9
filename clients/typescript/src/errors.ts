// The exceptions of the client. A denial is an answer, not an exception.

import type { Problem } from "./answers.js";

/** Base class: there is no decision. */
export class TidegateError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The server could not be reached, or the connection broke. The message names the URL. */
export class Unreachable extends TidegateError {}

/** The server did not answer in time. The check may have been charged; with an `id` it can be repeated. */
export class DeadlineExceeded extends Unreachable {}

/** The response is not one of tidegate. The message names the URL, which may be wrong. */
export class UnexpectedAnswer extends TidegateError {}

/**
 * The server at `url` rejected the request; `problem` has the reason. The message names both. `url` is `null` if
 * the client knew the reason and sent no request: `problem` is then the one that the server would send, and the
 * message is its detail.
 */
export class Rejected extends TidegateError {
  readonly problem: Problem;

  constructor(problem: Problem, url: string | null) {
    const where = problem.field === null ? "" : ` (field ${problem.field})`;
    const source = url === null ? "" : `answer from ${url}: ${problem.status} ${problem.title}: `;
    super(`${source}${problem.detail}${where}`);
    this.problem = problem;
  }
}

/** The server cannot decide now: its shared store is unavailable, or it holds the most permits it can. */
export class Unavailable extends Rejected {}

/** The permit is no longer held: its lease ended before it was renewed or given back, or it was given back before. */
export class PermitLost extends Rejected {}

/**
 * Throws a `TypeError` for an unknown member. JavaScript does not check types, and a misspelt member would
 * otherwise be ignored.
 */
export function rejectUnknown(where: string, value: object, names: readonly string[]): void {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new TypeError(`${where} must be an object, not ${kindOf(value)}`);
  }
  const unknown = Object.keys(value).find((name) => !names.includes(name));
  if (unknown === undefined) return;
  const camel = unknown.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  const help = names.includes(camel) ? `use ${camel}` : `use ${names.slice(0, -1).join(", ")} or ${names.at(-1)}`;
  throw new TypeError(`${where}: ${unknown} is unknown: ${help}`);
}

/** Throws a `TypeError` for a value of another type. It does not show the value, which may be a secret. */
export function requireType(name: string, value: unknown, type: "string" | "number" | "boolean" | "function"): void {
  if (value !== undefined && typeof value !== type) throw new TypeError(`${name} must be a ${type}, not ${kindOf(value)}`);
}

/** The type of a value for a message. */
export function kindOf(value: unknown): string {
  return value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
}
