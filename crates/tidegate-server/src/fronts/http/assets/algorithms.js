// The algorithms as the page presents them: a short description, the formula, the rule, and what the
// lane draws. The engine decides; the rule is its condition in words.
"use strict";

import { captions, workedSum } from "./cells.js";

/**
 * The algorithms, in the order of the lanes.
 *
 * - `captions(limit)`: the description and the formula
 * - `worked(state, limit)`: the formula with the numbers of a state
 * - `condition(settings)`: what must hold for a request to be admitted
 * - `slides`: whether the last window up to now is what counts
 * - `aligned`: whether it counts in windows that start at multiples of their length
 */
export const ALGORITHMS = {
  "fixed-window": {
    captions: () => ({ about: "counts per window and starts again at 0", formula: "count = admitted in the current window" }),
    worked: ({ count }) => `${count}`,
    condition: isBelow("the count"),
    slides: false,
    aligned: true,
  },
  "sliding-counter": {
    captions: () => ({ about: "keeps two counts and estimates the last window from them", formula: "estimate = prev × weight + curr" }),
    worked: workedEstimate,
    condition: isBelow("the estimate"),
    slides: true,
    aligned: true,
  },
  "sliding-window": {
    captions,
    worked: workedSum,
    condition: isBelow("used"),
    slides: true,
    aligned: false,
  },
  "sliding-log": {
    captions: () => ({ about: "keeps the time of every admitted request: exact", formula: "count = admitted in the last window" }),
    worked: ({ count }) => `${count}`,
    condition: isBelow("the count"),
    slides: true,
    aligned: false,
  },
  "token-bucket": {
    captions: () => ({ about: "refills steadily, holds at most the limit", formula: "tokens in the bucket" }),
    worked: ({ tokens }) => below(tokens),
    condition: ({ cost }) => `the bucket holds at least ${cost === 1 ? "1 token" : `${cost} tokens`}`,
    slides: false,
    aligned: false,
  },
};

/** Rounds, but never up to a whole number: 4.9999 is below 5, so another request still fits. */
function below(number) {
  const rounded = Number(number.toFixed(3));
  return (Number.isInteger(rounded) && number < rounded ? rounded - 0.001 : rounded).toFixed(3);
}

/** Returns the sign between two numbers as they are printed: `=` where they are equal, `≈` where digits are left out. */
export function equals(one, other) {
  return Math.abs(one - other) < 1e-9 ? "=" : "≈";
}

/** Returns the estimate with its numbers. */
function workedEstimate({ estimate, previous, weight, current }) {
  const [sum, part] = [below(estimate), weight.toFixed(3)];
  return `${sum} ${equals(sum, previous * part + current)} ${previous} × ${part} + ${current}`;
}

/** Returns the condition of the algorithms that count: the number is below what leaves space for the cost. */
function isBelow(number) {
  return ({ limit, cost }) => `${number} is below ${cost === 1 ? limit : `${limit} − ${cost} + 1 = ${limit - cost + 1}`}`;
}

/** Returns the rule by which a request of this cost is admitted. */
export function rule(algorithm, settings) {
  const { limit, cost } = settings;
  if (cost > limit) return `never admitted: the cost ${cost} is above the limit ${limit}`;
  return `${cost === 1 ? "" : `a cost of ${cost} is `}admitted while ${ALGORITHMS[algorithm].condition(settings)}`;
}
