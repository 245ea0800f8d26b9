// Predict, run, verify: five experiments and a quiz. The engine decides whether a prediction
// was right; the results are not stored here.
"use strict";

const EXPERIMENTS = [
  {
    id: "burst",
    title: "A burst of 8",
    text: "Eight requests arrive at once, and the limit is 5 per 15 s.",
    questions: [{ text: "How many of the 8 pass?", short: "passed", found: (stage) => stage.found("sliding-counter").admitted }],
    algorithms: ["sliding-counter"],
    async run(stage) {
      if (!(await stage.advanceTo(stage.windowUs() / 5))) return false;
      await stage.send(8);
      return stage.advanceTo(stage.windowUs() / 4);
    },
    why: "The first five fill the limit, and the other three are denied. A denied request leaves nothing behind: it costs no room and does not push the wait further away.",
  },
  {
    id: "boundary",
    title: "Boundary attack",
    text: "Five requests in the last second of a window, and five in the first second of the next. All ten come within two seconds.",
    questions: [
      { text: "How many of the 10 pass fixed-window?", short: "fixed-window passed", found: (stage) => stage.found("fixed-window").admitted },
      { text: "And sliding-counter?", short: "sliding-counter", found: (stage) => stage.found("sliding-counter").admitted },
    ],
    algorithms: ["fixed-window", "sliding-counter", "sliding-log"],
    async run(stage) {
      const mine = stage.run();
      await stage.boundaryAttack();
      return mine === stage.run();
    },
    why: "A fixed window forgets everything where it ends, so both bursts pass. The estimate still sees the first burst: a second into the new window it stands at 4.667, one more fits, and the rest are denied. The exact log lets none of them through.",
  },
  {
    id: "rollover",
    title: "Force a roll-over",
    text: "Three requests, and then we wait until the window ends.",
    questions: [
      { text: "Right after the roll-over, what is prev?", short: "prev", found: (stage) => stage.found("sliding-counter").sample.state.previous },
      { text: "And curr?", short: "curr", found: (stage) => stage.found("sliding-counter").sample.state.current },
    ],
    algorithms: ["sliding-counter"],
    async run(stage) {
      if (!(await stage.advanceTo(stage.windowUs() / 3))) return false;
      await stage.send(3);
      return stage.advanceTo(stage.windowUs() * 1.1);
    },
    why: "The current count becomes the previous one and a new count begins at 0. The estimate does not jump: it was 0 × 1 + 3, it is 3 × 1 + 0, and from there it melts as the weight falls.",
  },
  {
    id: "worst",
    title: "Break the estimate",
    text: "Five requests in the last instant of a window; then a client that comes back exactly when sliding-counter's retry-after says, to the microsecond.",
    questions: [
      { text: "The most that sliding-counter lets through in any 15 s?", short: "most in any 15 s: sliding-counter", found: (stage) => stage.found("sliding-counter").most_in_window },
      { text: "And sliding-window?", short: "sliding-window", found: (stage) => stage.found("sliding-window").most_in_window },
    ],
    algorithms: ["sliding-counter", "sliding-window"],
    run: (stage) => aimAtEstimate(stage, 5),
    why: "The estimate takes the five to have come evenly and lets go of them one by one, though all are recent: 10 pass within 15 s, twice the limit. It takes aim to do that. With a limit up to 20, sliding-window keeps the time of every admitted request, so it lets 5 through.",
  },
  {
    id: "beat",
    title: "Try to beat it",
    text: "The same attack at 60 per 15 s, where sliding-window has no room for 60 times and counts in cells. 60 requests come in the last instant of a window; then one whenever sliding-counter's retry-after allows it.",
    questions: [
      { text: "The most that sliding-counter lets through in any 15 s?", short: "most in any 15 s: sliding-counter", found: (stage) => stage.found("sliding-counter").most_in_window },
      { text: "And sliding-window?", short: "sliding-window", found: (stage) => stage.found("sliding-window").most_in_window },
    ],
    algorithms: ["sliding-counter", "sliding-window"],
    limit: 60,
    run: (stage) => aimAtEstimate(stage, 60),
    why: "sliding-counter assumes that the 60 came evenly over their window. It releases one every 0.25 s and lets 120 through, twice the limit. sliding-window measures: the limit's pace brings 3 units in the first 0.9 s of the cell, and none had come, so the cell has a lag of 3. Nothing in it expires until its last hit is 15 s old, and all 60 later requests are denied. Send what you like: it never lets more than 60 through in any 15 s.",
  },
];

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
    run(experiment, stage, { questions, why, verdict, button });
  });
  return form;
}

async function run(experiment, stage, { questions, why, verdict, button }) {
  stage.begin(experiment);
  why.hidden = true;
  verdict.textContent = "Running: watch the timeline.";
  questions.forEach((question) => { question.result.textContent = ""; });
  document.querySelector(".line").scrollIntoView({ block: "start" });
  button.disabled = true;
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
    button.disabled = false;
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
  verdict.textContent = guessed === 0 ? "This is what the engine found." : right === guessed ? "As you predicted." : "Not quite as you predicted.";
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
