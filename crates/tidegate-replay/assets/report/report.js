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

  function table(id, heads, rows, first = "") {
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
      row.forEach((text, index) => line.append(cell("td", text, index === 0 ? first : "")));
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
      (first ? limits(first).join("; ") : "") + (data.algorithms.length > 1 ? ", beside every other algorithm" : "");
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
    const rows = data.suggestions.map((s) => [s.limit || s.why_nothing, s.pass, `${count(s.passed)} of ${count(s.asked)}`, s.headroom, s.with_headroom || "none"]);
    table("suggestions", ["limit", "to pass", "passes", "headroom", "with headroom"], rows);
  }

  function keys(run) {
    const row = (key) => [key.policy ? `${key.policy}  ${key.key}` : key.key, count(key.events), count(key.denied), count(key.near_misses)];
    for (const [id, list] of [["denied", run.most_denied], ["nearest", run.nearest]]) {
      byId(id).replaceChildren();
      const rows = list.length ? list.map(row) : [["none", "", "", ""]];
      table(id, ["key", "events", "denied", "near misses"], rows, "key");
    }
  }

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const others = ["#5b8def", "#a66bd4", "#3aa6a6", "#d46b9e", "#8a8a2a"];
  let plots = [];

  // Hours as they are counted, with the day where it is another.
  function clock(_, splits) {
    let day = "";
    return splits.map((at) => {
      const iso = new Date(at * 1000).toISOString();
      const time = splits[1] - splits[0] < 60 ? iso.slice(11, 19) : iso.slice(11, 16);
      const shown = iso.slice(0, 10) === day ? time : `${time}\n${iso.slice(0, 10)}`;
      day = iso.slice(0, 10);
      return shown;
    });
  }

  function plot(id, about, times, series) {
    const at = byId(id);
    at.replaceChildren();
    at.setAttribute("role", "img");
    at.setAttribute("aria-label", about);
    const axis = { stroke: color("--text"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
    const options = {
      width: at.clientWidth || 600,
      height: 220,
      tzDate: (ts) => uPlot.tzDate(new Date(ts * 1000), "Etc/UTC"),
      scales: { y: { range: (_, __, max) => [0, Math.max(max * 1.05, 1)] } },
      axes: [{ ...axis, values: clock }, { ...axis, size: 60 }],
      series: [{ label: "time", value: (_, at) => (at ? new Date(at * 1000).toISOString().slice(0, 19) : "--") }].concat(series.map((one, index) => ({
        label: one.label,
        stroke: one.color ? color(one.color) : others[index % others.length],
        dash: one.dash,
        width: one.dash ? 1 : 1.5,
        paths: one.dash ? undefined : uPlot.paths.stepped({ align: 1 }),
        points: { show: false },
        spanGaps: true,
        fill: one.fill,
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
    const total = (values) => count(values.reduce((sum, n) => sum + n, 0));
    plot("plot-decided", `${total(line.admitted)} admitted and ${total(line.denied)} denied over time`, times, [
      { label: "admitted", values: line.admitted, color: "--good", fill: "rgba(42,127,63,.15)" },
      { label: "denied", values: line.denied, color: "--bad", fill: "rgba(192,57,43,.18)" },
    ]);
    const share = (n, index) => (run.limits[index].count ? (100 * n) / run.limits[index].count : 0);
    const most = line.most.map((values, index) => ({ label: limits(run)[index] || "", values: values.map((n, bin) => (line.admitted[bin] + line.denied[bin] ? share(n, index) : null)) }));
    const worst = Math.max(0, ...most.map((one) => Math.max(0, ...one.values)));
    const limit = { label: "limit", values: times.map(() => 100), dash: [6, 4], color: "--text" };
    plot("plot-most", `true rolling count of the busiest key, at most ${worst.toFixed(0)} percent of the limit`, times, most.concat([limit]));
    plot("plot-wrong", `${total(line.over_admitted)} over-admitted and ${total(line.false_denials)} wrongly denied over time`, times, [
      { label: "over-admitted", values: line.over_admitted, color: "--bad" },
      { label: "wrongly denied", values: line.false_denials, color: "--warn" },
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
    const usual = data.algorithms.findIndex((run) => run.algorithm === "sliding-window");
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
