// What each rank does now, and what it has done since the page was opened: its phases as coloured spans. A span
// reaches from one sample to the next and has the phase of the later one. A shorter phase is seen only by chance.
// Beside it, a table shows how rank 0's steps spend their time.
import { fetchRecords } from "/curves.js";
import { h, replace, svg } from "/dom.js";
import { bytes, isLive, percent, seconds } from "/format.js";
import { errorBox, table } from "/parts.js";
import { settings } from "/settings.js";

// Returns the class of style.css with the phase's colour. A phase without a class is grey.
function phaseClass(phase) {
  return settings.phases.includes(phase) ? `phase phase-${phase}` : "phase";
}

const LEAST_SEEN = 10; // seconds of the past that are shown at first
const MOST_SEEN = 120;
const LONGEST_GAP = 5; // seconds between two samples; the time in a longer gap is unknown
const WIDTH = 900;
const LEFT = 64;
const LINE = 24;

export function ranksTab(first) {
  const run = first.summary.id;
  const spans = new Map(); // rank -> [{phase, step, from, to}]
  const lines = h("div");
  const list = h("div");
  const times = h("div");
  let timesStep = -1;

  function note(detail) {
    const now = Date.now() / 1000;
    for (const rank of detail.ranks) {
      const of_rank = spans.get(rank.rank) || [];
      spans.set(rank.rank, of_rank);
      const phase = rank.phase || rank.state;
      const last = of_rank[of_rank.length - 1];
      const begin = now - rank.phase_age_seconds;
      if (last && last.phase === phase && last.step === rank.step) last.to = now;
      else of_rank.push({ phase, step: rank.step,
        from: last && now - last.to < LONGEST_GAP ? last.to : Math.max(begin, last ? last.to : 0), to: now });
      while (of_rank.length && of_rank[0].to < now - MOST_SEEN) of_rank.shift();
    }
  }

  async function loadTimes(step) {
    if (timesStep === step) return;
    timesStep = step;
    try {
      const names = settings.phases.map((phase) => `phase_seconds.${phase}`);
      const { records } = await fetchRecords(run, "step", names, [Math.max(1, step - 200), step], 200);
      replace(times, timesOf(records, names));
    } catch (error) {
      replace(times, errorBox(error));
    }
  }

  return {
    element: h("div", {}, h("h2", {}, "Phases since this view was opened"), lines,
      h("h2", {}, "Ranks of the newest attempt"), list,
      h("h2", {}, "Where the time of a step goes (rank 0, newest 200 steps)"), times),
    update(detail) {
      const culprits = culpritsOf(detail);
      note(detail);
      if (isLive(detail.summary.state)) replace(lines, timeline(spans, culprits));
      else replace(lines,
        h("p", { class: "empty" },
        "The run has ended. What its ranks did in their last seconds is kept for each hang: ",
        h("a", { href: `#/run/${run}/hangs` }, "Hangs")));
      replace(list, rankTable(detail.ranks, culprits));
      loadTimes(detail.summary.step);
    },
    end() {},
  };
}

// Returns the ranks that a verdict of the newest attempt names.
function culpritsOf(detail) {
  const attempt = detail.summary.attempt;
  return new Map((detail.hangs || []).filter((hang) => hang.attempt === attempt).map((hang) => [hang.rank, hang]));
}

function timeline(spans, culprits) {
  const now = Date.now() / 1000;
  const begin = Math.min(...[...spans.values()].flat().map((span) => span.from));
  const seen = Math.min(Math.max(now - begin, LEAST_SEEN), MOST_SEEN);
  const x = (at) => LEFT + (Math.max(0, at - (now - seen)) / seen) * (WIDTH - LEFT);
  const ranks = [...spans.keys()].sort((a, b) => a - b);
  const height = ranks.length * LINE + 22;
  const parts = ranks.flatMap((rank, index) => [
    svg("text", { class: culprits.has(rank) ? "fail" : "axis", x: 0, y: index * LINE + 15 },
      `${culprits.has(rank) ? "✖ " : ""}rank ${rank}`),
    spans.get(rank)
      .map((span) =>
      svg("rect",
      { class: phaseClass(span.phase), x: x(span.from), y: index * LINE + 3,
      width: Math.max(1, x(span.to) - x(span.from)), height: LINE - 6 },
      svg("title", {}, `${span.phase}, step ${span.step}`)))]);
  parts.push(svg("text", { class: "axis", x: LEFT, y: height - 6 }, `${Math.round(seen)} s ago`),
    svg("text", { class: "axis", x: WIDTH, y: height - 6, "text-anchor": "end" }, "now"));
  const phases = [...new Set([...spans.values()].flat().map((span) => span.phase))];
  return [svg("svg",
    { class: "timeline", viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
    "aria-label": ranks.map((rank) => `rank ${rank}: ${spans.get(rank).at(-1).phase}`).join("; ") }, parts),
    phaseKey(phases)];
}

function phaseKey(phases) {
  return h("ul", { class: "marks" },
    phases.map((phase) =>
    h("li", {},
    svg("svg", { width: 14, height: 14, "aria-hidden": "true" },
    svg("rect", { class: phaseClass(phase), width: 14, height: 14, rx: 3 })), phase)));
}

function rankTable(ranks, culprits) {
  if (ranks.length === 0) return h("p", { class: "empty" }, "No rank has started yet.");
  return table("Ranks",
    ["Rank", "State", "Phase", ">For", ">Step", ">Step time", ">Waits for others", ">Resident", ">On GPU", "Device",
    "End"],
    ranks.map((rank) => h("tr", { class: culprits.has(rank.rank) ? "culprit" : null },
      h("th", { scope: "row" }, rank.rank, culprits.has(rank.rank) ? ` ✖ ${culprits.get(rank.rank).kind}` : ""),
      h("td", {}, rank.state), h("td", {}, rank.phase || "–"),
      h("td", { class: "right" }, rank.phase ? seconds(rank.phase_age_seconds) : "–"),
      h("td", { class: "right" }, rank.step || "–"),
      h("td", { class: "right" }, rank.step_seconds ? seconds(rank.step_seconds) : "–"),
      h("td", { class: "right" }, percent(rank.exposed_communication_ratio)),
      h("td", { class: "right" }, rank.resident_bytes ? bytes(rank.resident_bytes) : "–"),
      h("td", { class: "right" }, rank.allocated_bytes ? bytes(rank.allocated_bytes) : "–"),
      h("td", {}, rank.device), h("td", {}, rank.exit || "–"))));
}

function timesOf(records, names) {
  const sums = names.map((name) => records.reduce((sum, record) => sum + (record[name] || 0), 0));
  const whole = sums.reduce((sum, value) => sum + value, 0);
  if (whole === 0) return h("p", { class: "empty" }, "No records yet.");
  const seen = settings.phases.map((phase, index) =>
    ({ phase, part: sums[index] / whole, mean: sums[index] / records.length })).filter((one) => one.part > 0);
  let left = 0;
  const bars = seen.map((one) => {
    const bar = svg("rect", { class: phaseClass(one.phase), x: left, y: 0, width: one.part * WIDTH, height: 26 },
      svg("title", {}, `${one.phase}: ${percent(one.part)}`));
    left += one.part * WIDTH;
    return bar;
  });
  return [svg("svg",
    { class: "timeline", viewBox: `0 0 ${WIDTH} 26`, role: "img",
    "aria-label": seen.map((one) => `${one.phase} ${percent(one.part)}`).join("; ") }, bars),
    table("Phases of a step", ["Phase", ">Time", ">Part"], seen.map((one) => h("tr", {},
      h("th", { scope: "row" },
        svg("svg", { width: 14, height: 14, "aria-hidden": "true" },
        svg("rect", { class: phaseClass(one.phase), width: 14, height: 14, rx: 3 })), " ", one.phase),
      h("td", { class: "right" }, seconds(one.mean)), h("td", { class: "right" }, percent(one.part)))))];
}
