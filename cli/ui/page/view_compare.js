// Compares several runs: curves of one metric in one diagram, and the keys of their run files that differ.
import { getJson, runPath } from "/api.js";
import { Chart, ChartGroup } from "/chart.js";
import { COARSE_AGAIN, fetchRecords, formatX, pointsOf, tickX, withSmoothing } from "/curves.js";
import { h, replace } from "/dom.js";
import { exportButtons } from "/export.js";
import { bytes, count, number, seconds } from "/format.js";
import { coarseNote, errorBox, stateBadge, table } from "/parts.js";
import { flatten } from "/tab_toggles.js";

const METRICS = [
  ["loss", "Loss", number], ["heldout_loss", "Held-out loss", number],
  ["tokens_per_second", "Tokens per second", count],
  ["gradient_norm", "Gradient norm", number], ["learning_rate", "Learning rate", number],
  ["step_seconds", "Time of a step", seconds],
  ["resident_bytes", "Memory of rank 0", bytes],
];
const chosen = { metric: "loss", axis: "tokens", smoothing: 0.6, log: false };

export function show(main, [ids = ""]) {
  const runs = ids.split(",").filter(Boolean);
  const place = h("div");
  const tables = h("div");
  const note = h("div");
  const group = new ChartGroup();
  let details = [];
  let curves = [];
  let chart = null;
  let coarseTimer = 0;
  let ended = false;
  replace(main, h("h1", {}, "Compare"), place, tables);

  async function start() {
    try {
      details = await Promise.all(runs.map((run) => getJson(runPath(run))));
      if (ended) return;
      replace(tables, figures(details), h("h2", {}, "Keys that differ"), differences(details));
      await load();
    } catch (error) {
      replace(place, errorBox(error));
    }
  }

  // `finer` requests finer records for the curves that are already drawn.
  async function load(finer = false) {
    const [metric, title, format] = METRICS.find((one) => one[0] === chosen.metric);
    const heldout = metric === "heldout_loss";
    const member = heldout ? "loss" : metric;
    clearTimeout(coarseTimer);
    const fetched =
      await Promise.all(runs.map((run) => fetchRecords(run, heldout ? "evaluation" : "step", [member])));
    if (ended || metric !== chosen.metric) return;
    const records = fetched.map((one) => one.records);
    const coarse = fetched.find((one) => one.indexed !== undefined);
    replace(note, coarse ? coarseNote(coarse.indexed) : null);
    if (coarse) coarseTimer = setTimeout(() => loadOrTell(true), COARSE_AGAIN);
    curves = records.map((of_run, index) => ({ of_run, member, index }));
    if (finer) return draw();
    if (chart) chart.end();
    chart = new Chart({ title, group, format, formatX: (value) => formatX(chosen.axis)(value),
      formatTick: (value) => tickX(chosen.axis)(value) });
    chart.element.classList.add("large");
    replace(chart.tools, exportButtons(chart, `compare-${metric}`));
    replace(place, controls(), note, chart.element, records.some((one) => one.length === 0)
      ? h("p", { class: "muted" }, "A run without records of this metric has no curve.") : null);
    draw();
  }

  const loadOrTell = (finer) => load(finer).catch((error) => replace(place, errorBox(error)));

  function draw() {
    const drawn = curves.flatMap(({ of_run, member, index }) => {
      const name = `${details[index].summary.name} ${details[index].summary.id}`;
      return withSmoothing({ name, label: name, colour: index, points: pointsOf(of_run, member, chosen.axis) },
        chosen.smoothing);
    });
    chart.set(drawn, [], { log: chosen.log, time: chosen.axis === "time" });
  }

  function controls() {
    const select = (id, values, changed) => {
      const element = h("select", { id, onchange: () => { chosen[id] = element.value; changed(); } },
        values.map(([value, title]) => h("option", { value }, title)));
      element.value = chosen[id];
      return element;
    };
    const smoothing =
      h("input",
      { id: "smoothing", type: "range", min: 0, max: 0.98, step: 0.02, value: chosen.smoothing,
      oninput: () => { chosen.smoothing = Number(smoothing.value); draw(); } });
    const log = h("input", { id: "log", type: "checkbox", onchange: () => { chosen.log = log.checked; draw(); } });
    log.checked = chosen.log;
    return h("div", { class: "controls" }, h("label", { for: "metric" }, "Metric"),
      select("metric", METRICS, () => loadOrTell(false)),
      h("label", { for: "axis" }, "Over"),
      select("axis", [["tokens", "tokens"], ["step", "step"], ["time", "time"]], () => { group.zoom(null); draw(); }),
      h("label", { for: "smoothing" }, "Smoothing"), smoothing,
      h("span", { class: "check" }, log, h("label", { for: "log" }, "Logarithmic")));
  }

  if (runs.length < 2) replace(place,
    h("p", { class: "empty" }, "Select two runs or more in the list: ", h("a", { href: "#/runs" }, "Runs")));
  else start();
  return () => {
    ended = true;
    clearTimeout(coarseTimer);
    group.end();
  };
}

function headsOf(details) {
  return details.map((detail) =>
    h("a", { href: `#/run/${detail.summary.id}` }, `${detail.summary.name} ${detail.summary.id}`));
}

function figures(details) {
  const rows = [
    ["State", (run) => stateBadge(run.state)], ["Step", (run) => `${run.step} / ${run.steps}`],
    ["Tokens", (run) => count(run.tokens)],
    ["Loss", (run) => (run.has_loss ? number(run.loss) : "–")],
    ["Held-out loss", (run) => (run.has_heldout_loss ? number(run.heldout_loss) : "–")],
    ["Tokens/s", (run) => (run.tokens_per_second ? count(run.tokens_per_second) : "–")],
    ["Restarts", (run) => run.restarts], ["Hangs", (run) => run.hangs],
  ];
  return table("Figures of the runs", ["Figure", ...headsOf(details)],
    rows.map(([name, value]) =>
      h("tr", {}, h("th", { scope: "row" }, name), details.map((detail) => h("td", {}, value(detail.summary))))));
}

function differences(details) {
  const specs = details.map((detail) => flatten(detail.spec));
  const names = [...new Set(specs.flatMap(Object.keys))].sort()
    .filter((name) => name !== "run.name" && new Set(specs.map((spec) => spec[name])).size > 1);
  if (names.length === 0) return h("p", { class: "empty" }, "Their run files say the same.");
  return table("Keys that differ", ["Key", ...headsOf(details)],
    names.map((name) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, name)),
    specs.map((spec) => h("td", {}, h("code", {}, spec[name] === undefined ? "–" : spec[name]))))));
}
