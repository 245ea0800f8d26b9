// Client of the tidegate rate limiter, and retries that respect any limiter.

export { type Passage, admit } from "./admit.js";
export type { Answer, Decided, Denied, Line, Problem } from "./answers.js";
export { Client, type ClientOptions } from "./client.js";
export { DeadlineExceeded, PermitLost, Rejected, TidegateError, Unavailable, UnexpectedAnswer, Unreachable } from "./errors.js";
export { type ResponseLike, type RetryOptions, retry, retryFetch } from "./fetch.js";
export { type Advice, type Fields, advise } from "./fields.js";
export { Pacer } from "./pacer.js";
export { Permit } from "./permit.js";
export { type Refusal, rateLimitFields, refusal, unavailable, unreadable } from "./refusals.js";
export { Backoff, type BackoffOptions, Budget, Retrier, type RetrierOptions } from "./retry.js";
export type { Attributes, Check, PermitRequest, Subject, WaitingCheck } from "./wire.js";
