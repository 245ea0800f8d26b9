"use strict";
(() => {
  /* global uPlot */
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const number = new Intl.NumberFormat("en");
  const count = (n) => (n === undefined || n === null ? "" : number.format(n));

  // Values from the traffic, such as keys, are only set as text.
  function element(tag, text, className) {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function table(id, heads, rows, first = "") {
    const at = byId(id);
    at.replaceChildren();
    const head = at.createTHead().insertRow();
    for (const text of heads) {
      const made = element("th", text);
      made.scope = "col";
      head.append(made);
    }
    const body = at.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      row.forEach((text, index) => {
        const cell = element("td", text, index === 0 ? first : "");
        cell.dataset.label = heads[index];
        line.append(cell);
      });
    }
  }

  function span(us) {
    const seconds = us / 1e6;
    if (seconds < 1) return `${+(seconds * 1e3).toPrecision(3)} ms`;
    if (seconds < 120) return `${+seconds.toFixed(3)} s`;
    if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
    if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
    return `${(seconds / 86400).toFixed(1)} d`;
  }

  function short(n) {
    if (n >= 1e9) return `${+(n / 1e9).toFixed(1)}G`;
    if (n >= 1e6) return `${+(n / 1e6).toFixed(1)}M`;
    if (n >= 1e4) return `${+(n / 1e3).toFixed(1)}k`;
    return count(n);
  }

  // Which decisions were wrong is not known if the events are not in order of time.
  const NOT_KNOWN = "not known";
  const wrongCount = (n) => (data.sorted ? count(n) : NOT_KNOWN);
  const share = (part, all) => (all ? `${+((100 * part) / all).toPrecision(3)} %` : "");
  const modeOf = (l) => ({ observe: "observed", enforce: "enforced" })[l.mode] ?? l.mode;
  const observed = (l) => (l.mode === "observe" ? " (observed)" : "");
  const limits = (run) => run.limits.map((l) => (l.policy ? `${l.policy}: ${l.limit}${observed(l)}` : l.limit));
  const asked = data.algorithms[data.main];

  /** The limit of a run that its largest count exceeds, or comes closest to. */
  function worst(run) {
    const of = (l) => l.largest_rolling_count / Math.max(l.count, 1);
    return run.limits.reduce((a, b) => (of(b) > of(a) ? b : a), run.limits[0]);
  }

  function result() {
    byId("kind").textContent = data.traffic ? "simulation report" : "replay report";
    const [lead, ...others] = data.findings;
    byId("lead").textContent = lead ?? "";
    byId("findings").append(...others.map((text) => element("li", text)));
    const sources = data.files.map((file) => `${file.path} (${file.format || "unknown format"})`);
    if (data.traffic) sources.push(`${data.traffic.name}: ${data.traffic.about}; seed ${data.traffic.seed}`);
    const from = new Date(data.from_us / 1000).toISOString().replace(/\.\d+Z/, "Z");
    byId("about").textContent = `${asked ? `${limits(asked).join("; ")}. ` : ""}${span(data.span_us)} from ${from}. Source: ${sources.join(", ")}.`;
  }

  function tiles() {
    if (!asked) return;
    const most = worst(asked);
    const wrong = asked.over_admitted + asked.false_denials;
    const decided = asked.admitted + asked.denied;
    const net = data.net[data.main];
    const list = [
      ["Requests", short(asked.events), span(data.span_us)],
      ["Denied", share(asked.denied, decided) || "0 %", `${count(asked.denied)} request${asked.denied === 1 ? "" : "s"}`],
      ["Keys denied", short(asked.keys_denied), `of ${count(asked.keys)}`],
      ["Near misses", short(asked.near_misses), share(asked.near_misses, decided)],
      ["Largest count", most ? short(most.largest_rolling_count) : "0", most ? `${most.policy ? `${most.policy}: ` : ""}limit ${most.limit.split(" ", 3).join(" ")}${observed(most)}` : ""],
      data.sorted ? ["Wrong decisions", short(wrong), `${share(wrong, decided) || "0 %"}, above the limit or wrongly denied${wrong && net ? `; ${net.phrase}` : ""}`] : ["Wrong decisions", NOT_KNOWN, "the events are not in order of time"],
    ];
    byId("tiles").append(...list.map(([name, value, small]) => {
      const tile = element("section", "", "tile");
      tile.append(element("h2", name), element("p", value), element("small", small));
      return tile;
    }));
  }

  function compared() {
    // Clients that react to denials send each algorithm a different number of requests.
    const different = data.algorithms.some((run) => run.events !== data.algorithms[0].events);
    const heads = ["algorithm", ...(different ? ["requests"] : []), "admitted", "denied", "keys denied", "near misses", "largest count / limit", "above the limit", "wrongly denied"];
    const differ = data.algorithms.some((run) => run.differ !== undefined);
    const net = data.net.some((one) => one);
    if (differ) heads.push("unlike sliding-log");
    if (net) heads.push("net difference");
    const rows = data.algorithms.map((run, index) => {
      const most = worst(run);
      const largest = most ? `${count(most.largest_rolling_count)} / ${count(most.count)}` : "";
      const numbers = [...(different ? [run.events] : []), run.admitted, run.denied, run.keys_denied, run.near_misses].map(count);
      return [run.algorithm, ...numbers, largest, wrongCount(run.over_admitted), wrongCount(run.false_denials), ...(differ ? [count(run.differ)] : []), ...(net ? [data.net[index]?.short ?? ""] : [])];
    });
    table("compared", heads, rows);
  }

  /** Lists the limits of policies, which do not all see the same requests. */
  function policies(run) {
    const rows = run.limits.filter((l) => l.policy).map((l) => [
      l.policy, l.limit, modeOf(l), count(l.asked), count(l.denied), `${count(l.largest_rolling_count)} / ${count(l.count)}`,
    ]);
    byId("policies").hidden = !rows.length;
    byId("policies-of").textContent = `under ${run.algorithm === "policies" ? "their own algorithms" : run.algorithm}`;
    table("policy-limits", ["policy", "limit", "mode", "checked", "denied", "largest count / limit"], rows, "text");
  }

  function suggested() {
    if (!data.suggestions || !data.suggestions.length) return;
    byId("suggested").hidden = false;
    byId("alone").hidden = asked.limits.length < 2;
    const rows = data.suggestions.map((s) => [s.limit || s.why_nothing, s.pass, `${count(s.passed)} of ${count(s.asked)}`, s.headroom, s.with_headroom || "none"]);
    table("suggestions", ["limit", "to pass", "passes", "headroom", "with headroom"], rows, "text");
  }

  function keys(run) {
    byId("keys-of").textContent = run.algorithm === "policies" ? "under the policies" : `under ${run.algorithm}`;
    const row = (key) => [key.policy ? `${key.policy}  ${key.key}` : key.key, count(key.events), count(key.denied), count(key.near_misses)];
    for (const [id, list, found] of [["denied", run.most_denied, run.keys_denied], ["nearest", run.nearest, run.near_misses]]) {
      // With `--top 0` the lists are empty although there are such keys.
      const rows = list.length ? list.map(row) : [[found ? "not listed (--top 0)" : "none", "", "", ""]];
      table(id, ["key", "requests", "denied", "near misses"], rows, "key");
    }
  }

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const MOST_THICKER = 6;  // pixels by which the lowest line is thicker than the highest one
  const NAMES = ["--one", "--three", "--four", "--five", "--six", "--two"];
  let plots = [];

  /** Labels of the time axis: times of day, with the date where it changes, or dates only. */
  function clock(_, splits) {
    let day = "";
    const step = splits[1] - splits[0];
    return splits.map((at) => {
      const iso = new Date(at * 1000).toISOString();
      const date = iso.slice(0, 10);
      if (step >= 86400) return date;
      const time = step < 1 ? iso.slice(11, 23) : step < 60 ? iso.slice(11, 19) : iso.slice(11, 16);
      const shown = date === day ? time : `${time}\n${date}`;
      day = date;
      return shown;
    });
  }

  /** Draws lines `{label, values, color, dash}`. Each line is thinner than those below it, so that
   * lines of equal values can be seen; many lines differ less, so that none is thick. */
  function plot(id, about, times, widthS, lines, format) {
    const at = byId(id);
    const area = document.createElement("div");
    area.setAttribute("role", "img");
    area.setAttribute("aria-label", about);
    const legend = element("ul", "", "legend");
    at.replaceChildren(area, legend);
    const colors = lines.map((line, index) => color(line.color ?? NAMES[index % NAMES.length]));
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const thicker = Math.min(2, MOST_THICKER / Math.max(1, lines.length - 1));
    const series = lines.map((line, index) => ({
      stroke: colors[index], dash: line.dash, width: 1.5 + thicker * (lines.length - 1 - index),
      paths: uPlot.paths.stepped({ align: 1, extend: true }), points: { show: false },
    }));
    const values = [...legend.children];
    const show = (shown) => lines.forEach((line, index) => {
      const value = line.values[shown];
      values[index].lastElementChild.textContent = shown === null || shown === undefined ? line.total : format(value);
    });
    values.push(...lines.map((line, index) => {
      const item = document.createElement("li");
      const key = element("i", "", line.dash ? "dashed" : "");
      key.style.borderColor = colors[index];
      item.append(key, element("span", line.label), element("b", ""));
      return item;
    }));
    legend.append(...values);
    const made = new uPlot({
      // A label is centred below its tick. On the right there is room for half of the widest one, a
      // date or a time with milliseconds, in case a tick falls on the edge.
      width: Math.max(200, at.clientWidth), height: 210, padding: [10, 40, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { setScale: false, x: false, y: false } },
      scales: {
        x: { range: (_, least, most) => [least, most + widthS] },
        y: { range: (_, __, most) => [0, Math.max((most ?? 0) * 1.1, 1)] },
      },
      axes: [{ ...axis, values: clock, space: 90, size: 44 }, { ...axis, values: (_, all) => all.map(format), size: 60, space: 34 }],
      series: [{}, ...series],
      hooks: { setCursor: [(one) => show(one.cursor.idx)] },
    }, [times, ...lines.map((line) => line.values)], area);
    show(null);
    plots.push([at, made]);
  }

  /** Draws the lines that are not zero everywhere, or shows a sentence if there are none. */
  function plotUnlessZero(id, times, widthS, lines, none) {
    const drawn = lines.filter((line) => line.values.some((n) => n > 0));
    if (!drawn.length) return byId(id).replaceChildren(element("p", none, "quiet"));
    return plot(id, drawn.map((line) => `${line.total} ${line.label}`).join(", "), times, widthS, drawn, short);
  }

  const MOST_LINES = 6;

  function draw(run) {
    plots.forEach(([, one]) => one.destroy());
    plots = [];
    const line = run.timeline;
    if (!line) return;
    const widthS = line.width_us / 1e6;
    const times = line.admitted.map((_, index) => (line.start_us + index * line.width_us) / 1e6);
    const counts = (label, values, name) => ({ label, values, color: name, total: short(values.reduce((sum, n) => sum + n, 0)) });
    const decided = [counts("admitted", line.admitted, "--allowed"), counts("denied", line.denied, "--denied")];
    plot("plot-decided", decided.map((one) => `${one.total} ${one.label}`).join(", "), times, widthS, decided, short);
    const percent = (n) => `${count(Math.round(n))} %`;
    const most = line.most.map((values, index) => {
      const of = Math.max(run.limits[index].count, 1);
      const shares = values.map((n) => (100 * n) / of);
      return { label: limits(run)[index], values: shares, peak: Math.max(0, ...shares) };
    });
    const highest = most.toSorted((a, b) => b.peak - a.peak).slice(0, MOST_LINES);
    highest.forEach((one) => { one.total = `${percent(one.peak)} at most`; });
    const limit = { label: "limit", values: times.map(() => 100), dash: [6, 5], color: "--text", total: "100 %" };
    plot("plot-most", highest.map((one) => `${one.label}: ${one.total}`).join(", "), times, widthS, [...highest, limit], percent);
    const unlike = counts("unlike sliding-log", line.differ, "--three");
    if (data.sorted) {
      plotUnlessZero("plot-wrong", times, widthS, [
        unlike,
        counts("above the limit", line.over_admitted, "--denied"),
        counts("wrongly denied", line.false_denials, "--would"),
      ], "None: no request was admitted above the limit or denied wrongly.");
    } else {
      plotUnlessZero("plot-wrong", times, widthS, [unlike], "No decision was unlike sliding-log.");
      byId("plot-wrong").append(element("p", "Which decisions were wrong is not known: the events are not in order of time.", "quiet"));
    }
    const left = most.length > MOST_LINES ? ` The ${MOST_LINES} of ${most.length} limits with the highest counts are shown.` : "";
    byId("binned").textContent = `Each step covers ${span(line.width_us)}. Times are UTC.${left}`;
  }

  function problems() {
    const kinds = [["Lines skipped", data.skipped], ["Events out of order, decided at their own time", data.out_of_order], ["Lines equal to the line before", data.duplicates], ["Damaged files", data.damaged]];
    const list = byId("problem-list");
    for (const hint of data.hints) list.append(element("p", `Hint: ${hint}`));
    for (const [title, one] of kinds.filter(([, one]) => one.count)) {
      list.append(element("h3", `${title}: ${count(one.count)}`));
      const items = document.createElement("ul");
      for (const first of one.first) items.append(element("li", `${first.file}:${first.line}: ${first.problem}`));
      list.append(items);
    }
    byId("problems").hidden = !list.childElementCount;
  }

  function choose() {
    const select = byId("algorithm");
    data.algorithms.forEach((run, index) => {
      const made = element("option", run.algorithm);
      made.value = index;
      select.append(made);
    });
    const show = () => {
      const run = data.algorithms[select.value];
      if (run) { draw(run); keys(run); policies(run); }
    };
    select.addEventListener("change", show);
    select.value = data.main;
    show();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    addEventListener("resize", () => plots.forEach(([at, one]) => one.setSize({ width: Math.max(200, at.clientWidth), height: 210 })));
  }

  result();
  tiles();
  suggested();
  compared();
  problems();
  choose();
})();
