// The curves of a run, each in its own diagram over the same x axis.
import { Chart, ChartGroup } from "/chart.js";
import { COARSE_AGAIN, fetchRecords, formatX, marksOf, pointsOf, tickX, withSmoothing } from "/curves.js";
import { h, replace } from "/dom.js";
import { exportButtons } from "/export.js";
import { bytes, count, isLive, number, percent, seconds } from "/format.js";
import { coarseNote, errorBox } from "/parts.js";

const LEAST_POINTS = 600; // for a narrow chart

const PANELS = [
  { id: "loss", title: "Loss", metrics: { loss: "loss" }, heldout: true, format: number },
  { id: "tokens_per_second", title: "Tokens per second", metrics: { tokens_per_second: "tokens/s" }, format: count },
  { id: "gradient_norm", title: "Gradient norm", metrics: { gradient_norm: "norm" }, format: number },
  { id: "learning_rate", title: "Learning rate", metrics: { learning_rate: "rate" }, format: number },
  { id: "time", title: "Time of a step", format: seconds,
    metrics: { step_seconds: "step", exposed_communication_seconds: "waits for other ranks",
      data_wait_seconds: "waits for data" } },
  { id: "memory", title: "Memory of rank 0", format: bytes,
    metrics: { resident_bytes: "resident", allocated_bytes: "allocated on GPU", reserved_bytes: "reserved on GPU" } },
];

// Shown if nsad knows the GPUs' peak rate: `factor` times the tokens per second.
const MFU = { id: "mfu", title: "MFU", metrics: { tokens_per_second: "of the GPUs' dense BF16 rate" }, format: percent };

// The reader's choices also apply to the next run.
const chosen = { axis: "step", smoothing: 0.6, log: false, layer: 0 };

export function curvesTab(first) {
  const run = first.summary.id;
  let detail = first;
  let busy = false;
  let again = false;
  let seenStep = -1;
  let zoomTimer = 0;
  let coarseTimer = 0;
  let ended = false;
  const problem = h("div");
  const group = new ChartGroup(() => {
    clearTimeout(zoomTimer);
    zoomTimer = setTimeout(() => { zoomTimer = 0; load(); }, 150); // finer records for the visible range
    tellBusy();
  });
  const panels = [...PANELS, ...layerPanels(first)].map((panel) => makePanel(panel, group, run));
  const marks = h("ul", { class: "marks", "aria-label": "Meaning of the marks" },
    [["hang", "hang"], ["restart", "restart after a failure"], ["resume", "resumed by a person"],
      ["checkpoint", "checkpoint"]]
      .map(([kind, text]) => h("li", {}, h("span", { class: `mark mark-${kind}`, "aria-hidden": "true" }), text)));
  const charts = h("div", { class: "charts", "aria-busy": "true" }, panels.map((panel) => panel.chart.element));
  const element = h("div", {}, controls(), problem, marks, charts);
  addMfu();

  // Adds the MFU after the tokens per second, as soon as the ranks have reported their devices.
  function addMfu() {
    if (!(detail.mfu_of_token_rate > 0) || panels.some((panel) => panel.id === MFU.id)) return;
    const panel = makePanel({ ...MFU, factor: detail.mfu_of_token_rate }, group, run);
    panels.splice(2, 0, panel);
    charts.children[1].after(panel.chart.element);
  }

  async function load() {
    if (ended) return;
    again = busy; // a request during this load is carried out after it
    if (busy) return;
    busy = true;
    tellBusy();
    clearTimeout(coarseTimer);
    try {
      const range = stepRange(group.window, panels[0].records);
      const asked = detail.summary.step;
      // The loss comes first, because each metric of a long run without an index takes seconds.
      const others = panels.slice(1);
      await fetchPanel(panels[0], run, range);
      const fetches = others.map((panel) => fetchPanel(panel, run, range)); // these run while the loss is drawn
      tellCoarse();
      seenStep = asked;
      drawOne(panels[0]);
      await Promise.all(others.map(async (panel, index) => {
        await fetches[index];
        drawOne(panel);
      }));
      tellCoarse();
    } catch (error) {
      replace(problem, errorBox(error));
    } finally {
      busy = false;
      if (panels.some((panel) => panel.indexed !== undefined) && !ended) coarseTimer = setTimeout(() => load(), COARSE_AGAIN);
      if (again) load();
      tellBusy();
    }
  }

  // Shows whether records of the visible range are still missing.
  function tellBusy() {
    charts.setAttribute("aria-busy", String(busy || zoomTimer !== 0));
  }

  function tellCoarse() {
    const coarse = panels.find((panel) => panel.indexed !== undefined);
    replace(problem, coarse ? coarseNote(coarse.indexed) : null);
  }

  function drawOne(panel) {
    if (!ended) drawPanel(panel, marksOf(detail, panels[0].records, chosen.axis));
  }

  function draw() {
    for (const panel of panels) drawOne(panel);
  }

  function controls() {
    const axis = h("select", { id: "axis", onchange: () => { chosen.axis = axis.value; group.zoom(null); draw(); } },
      ["step", "tokens", "time"].map((name) => h("option", { value: name }, name)));
    axis.value = chosen.axis;
    const smoothing =
      h("input", { id: "smoothing", type: "range", min: 0, max: 0.98, step: 0.02, value: chosen.smoothing,
      oninput: () => { chosen.smoothing = Number(smoothing.value); draw(); } });
    const log = h("input", { id: "log", type: "checkbox", onchange: () => { chosen.log = log.checked; draw(); } });
    log.checked = chosen.log;
    const layers = first.spec.model.layers;
    const layer = h("select", { id: "layer", onchange: () => { chosen.layer = Number(layer.value); load(); } },
      Array.from({ length: layers }, (_, index) => h("option", { value: index }, index)));
    chosen.layer = Math.min(chosen.layer, layers - 1);
    layer.value = chosen.layer;
    return h("div", { class: "controls" },
      h("label", { for: "axis" }, "Over"), axis, h("label", { for: "smoothing" }, "Smoothing"), smoothing,
      h("span", { class: "check" }, log, h("label", { for: "log" }, "Logarithmic")),
      layers > 1 ? [h("label", { for: "layer" }, "Figures of layer"), layer] : null,
      h("button", { type: "button", class: "small", onclick: () => group.zoom(null) }, "Show all"),
      h("span", { class: "muted" }, "Drag to zoom, Shift and drag to move. By keyboard: + − ← → 0."));
  }

  queueMicrotask(load); // after the charts have their width
  return {
    element,
    update(next) {
      const changed = next.attempts.length !== detail.attempts.length || next.hangs.length !== detail.hangs.length;
      detail = next;
      addMfu();
      if (changed
        || (next.summary.step !== seenStep && (isLive(next.summary.state) || seenStep < next.summary.step))) load();
    },
    end() {
      ended = true;
      clearTimeout(zoomTimer);
      clearTimeout(coarseTimer);
      group.end();
    },
  };
}

// Returns panels for the chosen layer, whose number replaces "#".
function layerPanels(detail) {
  const { model, nsa, metrics } = detail.spec;
  const of = (id, title, format, layerMetrics) => ({ id, title, format, layerMetrics });
  const panels = [];
  const isNsa = nsa && model.attention === "nsa";
  if (isNsa) panels.push(of("gates", "Gates of a layer", number,
    Object.fromEntries(nsa.branches.map((branch) => [`gates.#/${branch}`, branch]))));
  if (!metrics?.layer_interval_steps) return panels;
  panels.push(of("gradient_norms", "Gradient norm of a layer", number,
    { "gradient_norms.#": "layer", "gradient_norms.embedding": "embedding", "gradient_norms.final_norm": "final norm" }));
  if (isNsa && nsa.branches.includes("selected")) panels.push(
    of("selected_distance", "Distance of selected blocks", count, { "selected_distance.#": "tokens" }),
    of("selected_overlap", "Overlap of selected blocks", percent, { "selected_overlap.#": "of neighbours" }));
  return panels;
}

function makePanel(panel, group, run) {
  const chart =
    new Chart({ title: panel.title, group, format: panel.format, formatX: (value) => formatX(chosen.axis)(value),
    formatTick: (value) => tickX(chosen.axis)(value) });
  replace(chart.tools, exportButtons(chart, `${run}-${panel.id}`));
  return { ...panel, chart, records: [], evaluations: [] };
}

function metricsOf(panel) {
  if (!panel.layerMetrics) return panel.metrics;
  return Object.fromEntries(
    Object.entries(panel.layerMetrics).map(([metric, label]) => [metric.replace("#", chosen.layer), label]));
}

async function fetchPanel(panel, run, range) {
  const points = Math.max(LEAST_POINTS, Math.ceil(1.5 * panel.chart.canvas.clientWidth));
  const fetches = [fetchRecords(run, "step", Object.keys(metricsOf(panel)), range, points)];
  if (panel.heldout) fetches.push(fetchRecords(run, "evaluation", ["loss"], range, points));
  const [steps, evaluations = { records: [] }] = await Promise.all(fetches);
  panel.records = steps.records;
  panel.evaluations = evaluations.records;
  panel.indexed = steps.indexed ?? evaluations.indexed;
}

function drawPanel(panel, marks) {
  const curves = Object.entries(metricsOf(panel)).flatMap(([metric, label], index) => {
    const points = pointsOf(panel.records, metric, chosen.axis)
      .map(([x, y]) => [x, y * (panel.factor || 1)]);
    if (points.every((point) => point[1] === 0)) return []; // no GPU
    return withSmoothing({ name: label, label, colour: index, points }, chosen.smoothing);
  });
  if (panel.heldout) curves.push({ name: "held-out loss", label: "held-out loss", colour: 1, dots: true,
    points: pointsOf(panel.evaluations, "loss", chosen.axis) });
  panel.chart.set(curves, marks, { log: chosen.log, time: chosen.axis === "time" });
}

// Returns the steps that this range of the x axis shows.
function stepRange(window, records) {
  if (!window) return null;
  const [least, greatest] = window.map((value) => (value instanceof Date ? value.getTime() : value));
  if (chosen.axis === "step") return [least, greatest];
  const inside = records.filter((record) => {
    const x = chosen.axis === "time" ? Date.parse(record.time) : record.tokens;
    return x >= least && x <= greatest;
  });
  return inside.length > 1 ? [inside[0].step, inside[inside.length - 1].step] : null;
}
