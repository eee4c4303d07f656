// Each hang of the run: the verdict in one sentence, the progress of each rank's collectives, the last seconds of all
// ranks, and their stacks. Frames that differ between ranks are marked.
import { getJson } from "/api.js";
import { h, replace, svg } from "/dom.js";
import { dateTime, seconds } from "/format.js";
import { errorBox, table } from "/parts.js";

const WIDTH = 900;
const LEFT = 64;
const LINE = 26;

export function hangsTab(first) {
  const element = h("div");
  let shown = -1;
  return {
    element,
    update(detail) {
      const hangs = detail.hangs || [];
      if (hangs.length === shown) return;
      shown = hangs.length;
      if (hangs.length === 0) replace(element, h("p", { class: "empty" }, "No rank of this run has hung."));
      else replace(element, hangs.map((hang, index) => hangOf(first.summary.id, hang, index)).reverse());
    },
    end() {},
  };
}

function hangOf(run, hang, index) {
  const place = h("div", {}, h("p", { class: "muted" }, "Reading what was saved …"));
  getJson(`/ui/evidence?run=${encodeURIComponent(run)}&hang=${index}`)
    .then((saved) => replace(place, watermarks(saved, hang), lastSeconds(saved, hang), stacks(saved, hang)))
    .catch((error) => replace(place, errorBox(error)));
  return h("article", { class: "hang" },
    h("h2", {}, verdict(hang)),
    h("p", { class: "muted" }, `Attempt ${hang.attempt}, ${dateTime(hang.found_at)}. ` +
      `Found ${seconds(hang.detect_seconds)} after progress stopped${outcomeOf(hang)}`),
    h("ul", { class: "witnesses", "aria-label": "Witnesses" }, hang.witnesses.map((witness) => h("li", {}, witness))),
    place,
    h("p", { class: "muted" }, "Saved in ", h("code", {}, hang.evidence_path || "no folder")));
}

function outcomeOf(hang) {
  if (hang.observed_only) return "; only observed, as hang.action says.";
  return hang.recover_seconds ? `; trained again ${seconds(hang.recover_seconds)} later.` : ".";
}

const KINDS = {
  stopped: "was stopped by a signal", deadlocked: "waits for a lock that nobody gives back",
  spinning: "computes without an end",
  "data-stall": "waits for data that does not come",
  "skipped-collective": "left out a collective that the others wait in",
  "stuck-device": "waits for its GPU, whose work does not end",
  "stuck-collective": "is stuck in a collective", uninterruptible: "waits in the kernel and cannot be interrupted",
};
function verdict(hang) {
  if (hang.kind === "network")
    return `The network between ${hang.nodes} carries no data, in ${hang.phase} of step ${hang.step}.`;
  return `Rank ${hang.rank} ${KINDS[hang.kind] || `hangs (${hang.kind})`}, in ${hang.phase} of step ${hang.step}.`;
}

function watermarks(saved, hang) {
  const pages = (saved.verdict && saved.verdict.pages) || [];
  if (pages.length === 0) return null;
  return [h("h3", {}, "Where each rank was"),
    table("Watermarks of the ranks", ["Rank", "Phase", ">Step", ">Enqueued", ">Started", ">Completed", "Waits in"],
    pages.map((page) => h("tr", { class: page.rank === hang.rank ? "culprit" : null },
      h("th", { scope: "row" }, page.rank === hang.rank ? `✖ ${page.rank}` : page.rank), h("td", {}, page.phase),
      h("td", { class: "right" }, page.step),
      h("td", { class: "right" }, page.collectives), h("td", { class: "right" }, page.started),
      h("td", { class: "right" }, page.completed), h("td", {}, page.waits_in || "–"))))];
}

// Draws the collectives of all ranks before the end, from their flight records.
function lastSeconds(saved, hang) {
  const ranks = Object.entries(saved.collectives || {}).map(([rank, record]) => [Number(rank), record.entries || []])
    .filter(([, entries]) => entries.length);
  if (ranks.length === 0) return null;
  const found = Date.parse(hang.found_at);
  const time = (nanoseconds) => nanoseconds / 1e6;
  const newest = Math.max(...ranks.map(([, entries]) => time(entries.at(-1).time_created_ns)));
  const to = Math.max(found, newest);
  const from = Math.min(newest - 1000, to - 5000);
  const x = (at) => LEFT + (Math.max(0, at - from) / (to - from)) * (WIDTH - LEFT);
  const parts = ranks.flatMap(([rank, entries], index) => [
    svg("text", { class: rank === hang.rank ? "fail" : "axis", x: 0, y: index * LINE + 16 },
      `${rank === hang.rank ? "✖ " : ""}rank ${rank}`),
    svg("line", { class: "track", x1: LEFT, x2: WIDTH, y1: index * LINE + 12, y2: index * LINE + 12 }),
    entries.filter((entry) => !entry.time_discovered_completed_ns || time(entry.time_discovered_completed_ns) > from)
      .map((entry) => {
      const done = entry.time_discovered_completed_ns > 0;
      const begin = x(time(entry.time_created_ns));
      const end = done ? x(time(entry.time_discovered_completed_ns)) : WIDTH;
      return svg("rect",
        { class: done ? "collective" : "collective open", x: begin, y: index * LINE + 4,
        width: Math.max(1, end - begin), height: LINE - 10 },
        svg("title", {}, `${entry.profiling_name} ${entry.collective_seq_id}: ${entry.what} (${entry.state})`));
    })]);
  const height = ranks.length * LINE + 22;
  parts.push(svg("text", { class: "axis", x: LEFT, y: height - 6 }, `${seconds((to - from) / 1000)} before`),
    svg("text", { class: "axis", x: WIDTH, y: height - 6, "text-anchor": "end" }, "found"));
  const open = ranks.map(([rank, entries]) => `rank ${rank}: ${entries.at(-1).state} ${entries.at(-1).what}`)
    .join("; ");
  return [h("h3", {}, "Collectives in the last seconds"),
    svg("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": open }, parts),
    h("ul", { class: "marks" }, h("li", {}, h("span", { class: "swatch done", "aria-hidden": "true" }), "completed"),
      h("li", {}, h("span", { class: "swatch open", "aria-hidden": "true" }), "never completed"))];
}

// Shows the main threads side by side, and marks each frame that some other rank lacks at its place.
function stacks(saved, hang) {
  const ranks = (saved.evidence && saved.evidence.ranks) || [];
  if (ranks.length === 0) return h("p", { class: "muted" }, "No stacks were saved.");
  // A frame without a function is identified by its place in a library.
  const functionOf = (frame) => (/^\S+\.so[.\d]*\+0x/.test(frame) ? frame : frame.replace(/\+0x[0-9a-f]+.*$/, ""));
  const mainFrames = ranks.map((rank) =>
    (rank.threads.find((thread) => thread.tid === rank.pid) || rank.threads[0] || { frames: [] }).frames);
  const shared = new Set(mainFrames.length > 1 ? mainFrames[0].map(functionOf)
    .filter((name) => mainFrames.every((frames) => frames.some((frame) => functionOf(frame) === name))) : []);
  return [h("h3", {}, "Stacks of the main threads"),
    h("p", { class: "muted" }, "Marked frames are not in every rank's stack. The innermost is at the top."),
    h("div", { class: "stacks" },
      ranks.map((rank, index) => h("section",
      { class: rank.rank === hang.rank ? "stack culprit" : "stack", "aria-label": `Stack of rank ${rank.rank}` },
      h("h4", {}, rank.rank === hang.rank ? `✖ Rank ${rank.rank}` : `Rank ${rank.rank}`,
        h("span", { class: "muted" }, ` ${rank.process_state || ""} pid ${rank.pid}`)),
      rank.error ? h("p", { class: "trouble" }, rank.error) : null,
      h("ol", {}, mainFrames[index].map((frame) => {
        const differs = mainFrames.length > 1 && !shared.has(functionOf(frame));
        return h("li", { class: differs ? "differs" : null }, differs ? h("mark", {}, frame) : frame);
      })),
      otherThreads(rank))))];
}

function otherThreads(rank) {
  const others = rank.threads.filter((thread) => thread.tid !== rank.pid);
  if (others.length === 0) return null;
  return h("details", {}, h("summary", {}, `${others.length} other threads`),
    others.map((thread) => [h("h5", {}, `${thread.name} (${thread.tid}, ${thread.state})`),
      h("ol", {}, thread.frames.map((frame) => h("li", {}, frame)))]));
}
