"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const number = new Intl.NumberFormat("en");
  const count = (n) => (n === undefined || n === null ? "" : number.format(n));

  // Whatever comes from the traffic becomes text and nothing else.
  function cell(tag, text, className) {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function table(id, heads, rows) {
    const at = byId(id);
    const head = at.createTHead().insertRow();
    for (const text of heads) {
      const made = cell("th", text);
      made.scope = "col";
      head.append(made);
    }
    const body = at.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      row.forEach((text, index) => line.append(cell("td", text, index === 0 ? "key" : "")));
    }
  }

  function span(us) {
    const seconds = us / 1e6;
    if (seconds < 120) return `${seconds.toFixed(3)} s`;
    if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
    if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
    return `${(seconds / 86400).toFixed(1)} d`;
  }

  const limits = (run) => run.limits.map((l) => (l.policy ? `${l.policy}: ${l.limit}` : l.limit));

  function about() {
    const first = data.algorithms[0];
    const from = new Date(data.from_us / 1000).toISOString();
    byId("about").textContent =
      `${count(data.events)} events of ${count(data.keys)} keys in ${span(data.span_us)}, from ${from}. ` +
      (data.algorithms.length > 1 ? "Every algorithm, " : "") + (first ? limits(first).join("; ") : "");
    const sources = byId("sources");
    if (data.traffic) {
      sources.append(cell("li", `${data.traffic.name}: ${data.traffic.about}; seed ${data.traffic.seed}`));
    }
    for (const file of data.files) {
      sources.append(cell("li", `${file.path}: ${file.format || "unknown format"}, ${count(file.events)} events`));
    }
  }

  function compared() {
    const several = data.algorithms.some((run) => run.limits.length > 1);
    const heads = ["", "admitted", "denied", "keys denied", "near misses", several ? "most / limit (worst)" : "most", "over-admitted", "wrongly denied", "unlike the exact log"];
    const rows = data.algorithms.map((run) => {
      const worst = run.limits.reduce((a, b) => (b.largest_rolling_count * a.count > a.largest_rolling_count * b.count ? b : a), run.limits[0]);
      const most = worst ? (several ? `${count(worst.largest_rolling_count)} / ${count(worst.count)}` : count(worst.largest_rolling_count)) : "";
      return [run.algorithm, count(run.admitted), count(run.denied), count(run.keys_denied), count(run.near_misses), most, count(run.over_admitted), count(run.false_denials), count(run.differ)];
    });
    table("compared", heads, rows);
  }

  function suggested() {
    if (!data.suggestions || !data.suggestions.length) return;
    byId("suggested").hidden = false;
    const rows = data.suggestions.map((s) => [s.limit, s.pass, `${count(s.passed)} of ${count(s.asked)}`, s.headroom, s.with_headroom]);
    table("suggestions", ["limit", "to pass", "passes", "headroom", "with headroom"], rows);
  }

  function keys(run) {
    const row = (key) => [key.policy ? `${key.policy}  ${key.key}` : key.key, count(key.events), count(key.denied), count(key.near_misses)];
    for (const [id, list] of [["denied", run.most_denied], ["nearest", run.nearest]]) {
      byId(id).replaceChildren();
      const rows = list.length ? list.map(row) : [["none", "", "", ""]];
      table(id, ["key", "events", "denied", "near misses"], rows);
    }
  }

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colors = ["--good", "--bad", "--warn"];
  const extra = ["#5b8def", "#a66bd4", "#3aa6a6", "#d46b9e", "#8a8a2a"];
  let plots = [];

  function plot(id, times, series, filled) {
    const at = byId(id);
    at.replaceChildren();
    const axis = { stroke: color("--text"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
    const options = {
      width: at.clientWidth || 600,
      height: 220,
      tzDate: (ts) => uPlot.tzDate(new Date(ts * 1000), "Etc/UTC"),
      scales: { y: { range: (_, __, max) => [0, Math.max(max * 1.05, 1)] } },
      axes: [axis, { ...axis, size: 60 }],
      series: [{}].concat(series.map((one, index) => ({
        label: one.label,
        stroke: one.dash ? color("--text") : index < colors.length ? color(colors[index]) : extra[(index - colors.length) % extra.length],
        dash: one.dash,
        width: one.dash ? 1 : 1.5,
        paths: one.dash ? undefined : uPlot.paths.stepped({ align: 1 }),
        points: { show: false },
        fill: filled && !one.dash && index < 2 ? (index ? "rgba(192,57,43,.18)" : "rgba(42,127,63,.15)") : undefined,
      }))),
    };
    plots.push([at, new uPlot(options, [times].concat(series.map((one) => one.values)), at)]);
  }

  function draw(run) {
    plots.forEach(([, one]) => one.destroy());
    plots = [];
    const line = run.timeline;
    if (!line) return;
    const times = line.admitted.map((_, index) => (line.start_us + index * line.width_us) / 1e6);
    plot("plot-decided", times, [
      { label: "admitted", values: line.admitted },
      { label: "denied", values: line.denied },
    ], true);
    const most = line.most.map((values, index) => ({
      label: limits(run)[index] || "",
      values: values.map((n) => (run.limits[index].count ? (100 * n) / run.limits[index].count : 0)),
    }));
    plot("plot-most", times, most.concat([{ label: "limit", values: times.map(() => 100), dash: [6, 4] }]));
    plot("plot-wrong", times, [
      { label: "wrongly denied", values: line.false_denials },
      { label: "over-admitted", values: line.over_admitted },
      { label: "unlike the exact log", values: line.differ },
    ]);
    byId("binned").textContent = `One step is ${span(line.width_us)}; times are UTC.`;
  }

  function problems() {
    const kinds = [["Lines skipped", data.skipped], ["Events out of order, decided at their own time", data.out_of_order], ["Lines the same as the line before", data.duplicates], ["Damaged files", data.damaged]];
    const list = byId("problem-list");
    for (const hint of data.hints) list.append(cell("p", `Hint: ${hint}`));
    for (const [title, one] of kinds.filter(([, one]) => one.count)) {
      list.append(cell("h3", `${title}: ${count(one.count)}`));
      const items = document.createElement("ul");
      for (const first of one.first) items.append(cell("li", `${first.file}:${first.line}: ${first.problem}`));
      list.append(items);
    }
    byId("problems").hidden = !list.childElementCount;
  }

  function choose() {
    const select = byId("algorithm");
    data.algorithms.forEach((run, index) => {
      const made = cell("option", run.algorithm);
      made.value = index;
      select.append(made);
    });
    const show = () => {
      const run = data.algorithms[select.value];
      if (run) { draw(run); keys(run); }
    };
    select.addEventListener("change", show);
    const usual = data.algorithms.findIndex((run) => run.algorithm === "sliding-counter");
    select.value = usual < 0 ? 0 : usual;
    show();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    addEventListener("resize", () => plots.forEach(([at, one]) => one.setSize({ width: at.clientWidth, height: 220 })));
  }

  about();
  suggested();
  compared();
  problems();
  choose();
})();
