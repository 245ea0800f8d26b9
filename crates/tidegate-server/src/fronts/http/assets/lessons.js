// Predict, run, verify: the experiments and the quiz. The engine decides whether a prediction
// was right; this file contains no results.
"use strict";

const admitted = (algorithm) => (stage) => stage.found(algorithm).admitted;
const most = (algorithm) => (stage) => stage.found(algorithm).most_in_window;
const remaining = (algorithm) => (stage) => stage.found(algorithm).sample.remaining;
const state = (algorithm, name) => (stage) => stage.found(algorithm).sample.state[name];

// For the two attacks on the estimate.
const MOST_OF_BOTH = [
  { text: "What is the most that sliding-counter admits in any 15 s?", short: "most in any 15 s: sliding-counter", found: most("sliding-counter") },
  { text: "And sliding-window?", short: "sliding-window", found: most("sliding-window") },
];

const EXPERIMENTS = [
  {
    id: "burst",
    title: "A burst of 8",
    text: "Eight requests arrive at once. The limit is 5 per 15 s.",
    questions: [
      { text: "How many of the 8 does sliding-window admit?", short: "sliding-window admitted", found: admitted("sliding-window") },
      { text: "And sliding-counter?", short: "sliding-counter", found: admitted("sliding-counter") },
    ],
    algorithms: ["sliding-counter", "sliding-window"],
    run: (stage) => sendOnce(stage, { at: 1 / 5, count: 8, until: 1 / 4 }),
    why: "Five requests use up the limit, and the other three are denied. A denied request is not counted: it uses no units and does not make the wait longer.",
  },
  {
    id: "boundary",
    title: "Boundary attack",
    text: "Five requests arrive one second before a window ends, and five one second after it. All ten arrive within two seconds.",
    questions: [
      { text: "How many of the 10 does fixed-window admit?", short: "fixed-window admitted", found: admitted("fixed-window") },
      { text: "And sliding-counter?", short: "sliding-counter", found: admitted("sliding-counter") },
      { text: "And sliding-window?", short: "sliding-window", found: admitted("sliding-window") },
    ],
    algorithms: ["fixed-window", "sliding-counter", "sliding-window"],
    async run(stage) {
      const mine = stage.run();
      await stage.boundaryAttack();
      return mine === stage.run();
    },
    why: "fixed-window starts again at 0 when a window ends, so it admits both bursts. sliding-counter still counts most of the first burst: one second into the new window the estimate is 5 × 0.933 + 0 ≈ 4.667, which is below 5, so one more request is admitted and the rest are denied. sliding-window counts the first five in full, and admits none of the second five.",
  },
  {
    id: "rollover",
    title: "The end of a window",
    text: "Three requests arrive at 5 s. Then time moves on to 16.5 s, into the next window.",
    questions: [
      { text: "What is prev of sliding-counter then?", short: "prev", found: state("sliding-counter", "previous") },
      { text: "And curr?", short: "curr", found: state("sliding-counter", "current") },
      { text: "What is used of sliding-window then?", short: "used", found: state("sliding-window", "used") },
    ],
    algorithms: ["sliding-counter", "sliding-window"],
    run: (stage) => sendOnce(stage, { at: 1 / 3, count: 3, until: 1.1 }),
    why: "When a window ends, curr becomes prev, and curr starts again at 0. The estimate does not jump: it was 0 × 0 + 3, became 3 × 1 + 0, and now falls with the weight. sliding-window has no such boundary: its three units count until they are 15 s old, at 20 s.",
  },
  {
    id: "worst",
    title: "Break the estimate",
    text: "Five requests arrive in the last instant of a window. Then one arrives whenever sliding-counter's retry-after allows it, to the microsecond.",
    questions: MOST_OF_BOTH,
    algorithms: ["sliding-counter", "sliding-window"],
    run: (stage) => aimAtEstimate(stage, 5),
    why: "The estimate assumes that the five arrived evenly, and releases them one by one although all are recent. So 10 are admitted within 15 s, twice the limit. Only a client that aims at it gets that many. With a limit up to 20, sliding-window keeps the time of every admitted request, and admits 5.",
  },
  {
    id: "even",
    title: "Capacity returns",
    text: "Four requests per second arrive evenly and use up 60 per 15 s. sliding-window counts them in cells of 1 s. At 15.5 s, half of the oldest cell has left the window.",
    questions: [
      { text: "How many more does sliding-log admit then?", short: "remaining: sliding-log", found: remaining("sliding-log") },
      { text: "And sliding-window?", short: "sliding-window", found: remaining("sliding-window") },
    ],
    algorithms: ["sliding-window", "sliding-log"],
    limit: 60,
    run: (stage) => sendEvenly(stage, 60),
    why: "sliding-log knows that the requests of 0, 0.25 and 0.5 s are 15 s old, so 3 more fit. sliding-window knows that the oldest cell has 4 units that never fell behind the limit's pace of 4 per second. So at least 4 × 0.5 − 0 = 2 of them arrived in its first half second, and these have expired. The third returns at 15.75 s, a quarter of a second late. The delay is never longer than one cell.",
  },
  {
    id: "beat",
    title: "Try to beat it",
    text: "The same attack on the estimate, at 60 per 15 s, where sliding-window counts in cells. 60 requests arrive in the last instant of a window. Then one arrives whenever sliding-counter's retry-after allows it.",
    questions: MOST_OF_BOTH,
    algorithms: ["sliding-counter", "sliding-window"],
    limit: 60,
    run: (stage) => aimAtEstimate(stage, 60),
    why: "sliding-counter assumes that the 60 arrived evenly over their window. It releases one every 0.25 s and admits 120, twice the limit. sliding-window measures: the limit's pace brings 3 units in the first 0.9 s of the cell, and none had arrived, so the cell has a lag of 3. Nothing in it expires until its last hit is 15 s old, and all 60 later requests are denied. Whatever is sent, sliding-window never admits more than 60 in any 15 s.",
  },
];

/** Sends `count` requests at one moment, then waits. Times are in windows. */
async function sendOnce(stage, { at, count, until }) {
  const window = stage.windowUs();
  if (!(await stage.advanceTo(at * window))) return false;
  await stage.send(count);
  return stage.advanceTo(until * window);
}

/** Sends `count` requests evenly over one window, then waits for half of the first cell to leave it. */
async function sendEvenly(stage, count) {
  const window = stage.windowUs();
  for (let sent = 0; sent < count; sent += 1) {
    if (!(await stage.advanceTo((sent * window) / count))) return false;
    await stage.send(1);
  }
  return stage.advanceTo(window + window / 30);
}

/** A burst in the last instant of a window, then one request whenever sliding-counter's retry-after allows it. */
async function aimAtEstimate(stage, burst) {
  const [window, mine] = [stage.windowUs(), stage.run()];
  const first = window - window / 150;
  if (!(await stage.advanceTo(first))) return false;
  await stage.send(burst);
  // The estimate releases the burst once, so no more than that can follow.
  for (let sent = 0; sent < burst && mine === stage.run(); sent += 1) {
    const { at_us: at, retry_after_us: wait } = stage.found("sliding-counter").sample;
    if (wait === null || at + wait >= first + window) break;
    if (!(await stage.advanceTo(at + wait))) return false;
    await stage.send(1);
  }
  return mine === stage.run();
}

/** Builds the cards and wires the quiz. */
export function lessons(stage) {
  document.getElementById("cards").replaceChildren(...EXPERIMENTS.map((one) => card(one, stage)));
  document.getElementById("questions").addEventListener("submit", checkQuiz);
}

function make(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

function card(experiment, stage) {
  const questions = experiment.questions.map((question, index) => {
    const id = `guess-${experiment.id}-${index}`;
    const input = make("input", { id, type: "number", min: "0", max: "999", step: "1", inputMode: "numeric" });
    const result = make("output", { className: "found" });
    result.setAttribute("for", id);
    return { ...question, input, result, row: make("p", { className: "prediction" }, make("label", { htmlFor: id, textContent: question.text }), input, result) };
  });
  const why = make("p", { className: "why", textContent: experiment.why, hidden: true });
  const verdict = make("p", { className: "verdict" });
  verdict.setAttribute("role", "status");
  const button = make("button", { type: "submit", className: "main", textContent: "Run" });
  const form = make("form", { className: "card lesson", id: `experiment-${experiment.id}` },
    make("h3", { textContent: experiment.title }), make("p", { textContent: experiment.text }),
    ...questions.map((question) => question.row), make("div", { className: "row" }, button, verdict), why);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (button.ariaDisabled !== "true") run(experiment, stage, { questions, why, verdict, button });
  });
  return form;
}

async function run(experiment, stage, { questions, why, verdict, button }) {
  stage.begin(experiment);
  why.hidden = true;
  verdict.textContent = "Running: watch the timeline.";
  questions.forEach((question) => { question.result.textContent = ""; });
  document.querySelector(".line").scrollIntoView({ block: "start" });
  // A button that is disabled loses the focus.
  button.ariaDisabled = "true";
  try {
    if (!(await experiment.run(stage))) {
      verdict.textContent = "Interrupted: run it again.";
      return;
    }
    await stage.finish();
    showResult(experiment, stage, { questions, why, verdict });
  } catch {
    // The engine did not answer.
    verdict.textContent = "The engine did not answer: run it again.";
  } finally {
    button.ariaDisabled = null;
  }
}

/** Shows the results of the engine next to the predictions. */
function showResult(experiment, stage, { questions, why, verdict }) {
  let right = 0;
  let guessed = 0;
  const values = [];
  for (const { input, result, found } of questions) {
    const [guess, value] = [input.value, found(stage)];
    values.push(value);
    const hit = guess !== "" && Number(guess) === value;
    if (guess !== "") guessed += 1;
    if (hit) right += 1;
    result.textContent = guess === "" ? `engine: ${value}` : hit ? `engine: ${value} ✓` : `engine: ${value}, not ${guess}`;
  }
  verdict.textContent = guessed === 0 ? "These are the results of the engine." : right === guessed ? "As you predicted." : "Not quite as you predicted.";
  why.hidden = false;
  const result = questions.map(({ short }, index) => `${short} ${values[index]}`).join(", ");
  stage.conclude(`${experiment.title}: ${result}. ${verdict.textContent}`, `#experiment-${experiment.id}`);
}

function checkQuiz(event) {
  event.preventDefault();
  let right = 0;
  const fieldsets = [...event.target.querySelectorAll("fieldset")];
  for (const fieldset of fieldsets) {
    const chosen = fieldset.querySelector("input:checked")?.value;
    const hit = chosen === fieldset.dataset.right;
    if (hit) right += 1;
    for (const label of fieldset.querySelectorAll("label")) {
      const value = label.querySelector("input").value;
      label.classList.toggle("right", value === fieldset.dataset.right);
      label.classList.toggle("wrong", value === chosen && !hit);
    }
    fieldset.querySelector(".why").hidden = false;
  }
  document.getElementById("score").textContent = `${right} of ${fieldsets.length} right.`;
}
