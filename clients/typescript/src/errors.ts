// What can go wrong. A denial is not among it: that is an answer.

import type { Problem } from "./answers.js";

/** Any failure to get an answer. */
export class TidegateError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** No answer came: the server cannot be reached, or the connection broke. */
export class Unreachable extends TidegateError {}

/** No answer came in time. The check may have been charged all the same, unless it had an `id`. */
export class DeadlineExceeded extends Unreachable {}

/** Something answered, but not as tidegate does. Is it the right address? */
export class UnexpectedAnswer extends TidegateError {}

/** The server does not understand the request, or will not take it: `problem` says why. */
export class Rejected extends TidegateError {
  readonly problem: Problem;

  constructor(problem: Problem) {
    const where = problem.field === null ? "" : ` (field ${problem.field})`;
    super(`${problem.status} ${problem.title}: ${problem.detail}${where}`);
    this.problem = problem;
  }
}

/** It cannot be decided now: the store that nodes share fails, or no more permits can be held. */
export class Unavailable extends Rejected {}

/** The permit is not held any more: its lease ended before it was renewed or given back. */
export class PermitLost extends Rejected {}
