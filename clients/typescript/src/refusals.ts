// Header fields and responses for the callers of your service, for middleware.
//
// `/v1/check` answers with numbers. These functions turn them into the fields of
// draft-ietf-httpapi-ratelimit-headers-10 and the problem document (RFC 9457) that
// tidegate sends through a gateway, with the same names.

import type { Answer, Line } from "./answers.js";

const KINDS = "https://iana.org/assignments/http-problem-types";
const QUOTA = {
  type: `${KINDS}#quota-exceeded`,
  title: "Request cannot be satisfied as assigned quota has been exceeded",
};
const CAPACITY = {
  type: `${KINDS}#temporary-reduced-capacity`,
  title: "Request cannot be satisfied due to temporary server capacity constraints",
};
const UNDECIDED = "the request cannot be decided now; try again later";
const NO_ROOM = "there is no room for new keys now, so they are denied; try again later";

const UNITS: readonly (readonly [string, number])[] = [
  ["w", 604_800_000],
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1000],
];
/** The longest header field. Proxies reject long ones. */
const MAX_POLICY_BYTES = 2048;

/** A response that refuses a request. */
export interface Refusal {
  readonly status: number;
  readonly fields: readonly (readonly [string, string])[];
  readonly body: string;
}

/**
 * Returns `RateLimit`, `RateLimit-Policy` and, on a denial, `Retry-After`, for any response. Empty if no
 * limit applied. Limits that are only observed are left out.
 */
export function rateLimitFields(answer: Answer): [string, string][] {
  const lines = shown(answer);
  const names = namesOf(lines);
  const speaker = speakerOf(answer, lines);
  const line = lines[speaker];
  const fields: [string, string][] = [];
  if (!answer.allowed && answer.retryAfterMs !== null) {
    fields.push(["retry-after", String(seconds(answer.retryAfterMs))]);
  }
  if (line !== undefined && line.remaining !== null) {
    const waitMs = answer.allowed ? answer.resetAfterMs : line.retryAfterMs;
    const until = waitMs === null ? "" : `;t=${seconds(waitMs)}`;
    fields.push(["ratelimit", `${quoted(names[speaker] ?? "")};r=${line.remaining}${until}`]);
  }
  const items = lines.map((each, index) => policyItem(each, names[index] ?? ""));
  if (items.length > 0) fields.push(["ratelimit-policy", withinBounds(items, speaker)]);
  return fields;
}

/** Returns the response to a denied request: 429, or 503 if the reason is an unavailable store. */
export function refusal(answer: Answer): Refusal {
  const lines = shown(answer);
  const denied = namesOf(lines).filter((_, index) => !lines[index]?.allowed);
  return refusalOf({ ...problemOf(answer, lines), "violated-policies": denied }, rateLimitFields(answer));
}

/** Returns the response of a service that fails closed if tidegate makes no decision. */
export function unavailable(retryAfterS = 1): Refusal {
  return refusalOf({ ...CAPACITY, status: 503, detail: UNDECIDED }, [["retry-after", String(retryAfterS)]]);
}

/** Returns the response to a request that is too long or malformed to be checked. */
export function unreadable(): Refusal {
  const detail = "it cannot be checked against its limits: it is malformed or too long";
  return refusalOf({ type: "about:blank", title: "Bad Request", status: 400, detail }, []);
}

interface ProblemBody {
  type: string;
  title: string;
  status: number;
  detail: string;
  "violated-policies"?: string[];
}

function refusalOf(problem: ProblemBody, fields: [string, string][]): Refusal {
  return {
    status: problem.status,
    fields: [["content-type", "application/problem+json"], ...fields],
    body: JSON.stringify(problem),
  };
}

function problemOf(answer: Answer, lines: readonly Line[]): ProblemBody {
  if (answer.decided === "failed-closed") return { ...CAPACITY, status: 503, detail: UNDECIDED };
  if (answer.noRoom) return { ...CAPACITY, status: 429, detail: NO_ROOM };
  return { ...QUOTA, status: 429, detail: detailOf(answer, lines[speakerOf(answer, lines)]) };
}

function detailOf(answer: Answer, line: Line | undefined): string {
  if (line === undefined) return "used up";
  const window = inUnits(line.windowMs);
  const text =
    line.algorithm === "concurrency"
      ? `${line.limit} concurrent lease ${window}`
      : `${line.limit} per ${window} ${line.algorithm}`;
  const limit = `\`${text}\`${line.policy === null ? "" : ` of policy ${line.policy}`}`;
  if (answer.retryAfterMs === null) return `this cost can never pass ${limit}`;
  const cause = line.remaining ? "not enough left" : "used up";
  return `${cause}: ${limit}; retry after ${seconds(answer.retryAfterMs)} s`;
}

function shown(answer: Answer): Line[] {
  return answer.limits.filter((line) => line.mode !== "observe");
}

/** Returns the index of the limit that the answer reports, or -1. */
function speakerOf(answer: Answer, lines: readonly Line[]): number {
  return lines.findIndex(
    (line) =>
      line.policy === answer.policy &&
      line.limit === answer.limit &&
      line.remaining === answer.remaining &&
      (answer.allowed || !line.allowed),
  );
}

/** Returns the name of each limit: its policy's, with the window if there are several, and a number if taken. */
function namesOf(lines: readonly Line[]): string[] {
  const isAlone = ({ policy }: Line) =>
    policy !== null && lines.filter((line) => line.policy === policy).length === 1;
  const taken = new Set(lines.filter(isAlone).map((line) => line.policy ?? ""));
  return lines.map((line) => {
    if (isAlone(line)) return line.policy ?? "";
    const window = line.algorithm === "concurrency" ? "concurrent" : inUnits(line.windowMs);
    const base = line.policy === null ? window : `${line.policy}-${window}`;
    let name = base;
    for (let number = 2; taken.has(name); number += 1) name = `${base}-${number}`;
    taken.add(name);
    return name;
  });
}

function policyItem(line: Line, name: string): string {
  const window = line.algorithm === "concurrency" ? 'qu="concurrent-requests"' : `w=${seconds(line.windowMs)}`;
  return `${quoted(name)};q=${line.limit};${window}`;
}

/** Joins as many items as fit. The reported limit is always among them. */
function withinBounds(items: readonly string[], speaker: number): string {
  const spoken = items[speaker];
  let room = MAX_POLICY_BYTES - (spoken === undefined ? 0 : spoken.length + 2);
  const kept = items.filter((item, index) => {
    if (index === speaker) return true;
    const fits = item.length + 2 <= room;
    if (fits) room -= item.length + 2;
    return fits;
  });
  return kept.join(", ");
}

function inUnits(ms: number): string {
  const [unit, size] = UNITS.find(([, size]) => ms % size === 0) ?? ["ms", 1];
  return `${ms / size}${unit}`;
}

/** Returns seconds, rounded up, so that a caller that waits as long is not early. */
function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}

/** Returns a String of a structured field. Names of policies are printable ASCII. */
function quoted(name: string): string {
  return `"${name.replace(/[^ -~]/gu, "?").replace(/["\\]/g, "\\$&")}"`;
}
