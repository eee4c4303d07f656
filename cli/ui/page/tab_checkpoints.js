// Draws attempts as branches of a tree: each continues from a checkpoint of an earlier one. A table lists every
// checkpoint with its state.
import { h, replace, svg } from "/dom.js";
import { bytes, count, dateTime } from "/format.js";
import { table } from "/parts.js";

const LEFT = 130;
const WIDTH = 900;
const LINE = 46;

export function checkpointsTab() {
  const element = h("div");
  let key = "";
  return {
    element,
    update(detail) {
      const next =
        JSON.stringify([detail.attempts.map((one) => [one.first_step, one.last_step, one.state]),
        detail.checkpoints]);
      if (next === key) return;
      key = next;
      replace(element, h("h2", {}, "Attempts, and the checkpoints they continued from"), treeOf(detail),
        listOf(detail.checkpoints));
    },
    end() {},
  };
}

function treeOf(detail) {
  const { attempts, checkpoints } = detail;
  const most =
    Math.max(1, detail.summary.step, ...attempts.map((one) => one.last_step), ...checkpoints.map((one) => one.step));
  const x = (step) => LEFT + (step / most) * (WIDTH - LEFT - 30);
  const y = (index) => 26 + index * LINE;
  const parts = [];
  attempts.forEach((attempt, index) => {
    const from = index > 0 ? parentOf(attempts, index) : -1;
    const first = x(attempt.first_step);
    if (from >= 0) {
      const bend = `${first},${y(index) - 12} ${first},${y(index)} ${first + 8},${y(index)}`;
      parts.push(svg("path", { class: "branch", d: `M${first},${y(from)} C${bend}` }));
    }
    parts.push(svg("line",
      { class: attempt.failure_class ? "attempt failed" : "attempt", x1: x(attempt.first_step),
      x2: Math.max(x(attempt.last_step), x(attempt.first_step) + 4), y1: y(index), y2: y(index) }));
    parts.push(svg("text", { class: "axis", x: 12, y: y(index) + 4 }, `attempt ${attempt.attempt}`));
    if (attempt.failure_class)
      parts.push(svg("text", { class: "fail", x: x(attempt.last_step) + 6, y: y(index) + 5 },
        `✖ ${attempt.failure_class}`));
  });
  for (const checkpoint of checkpoints) {
    const index = attempts.findIndex((one) => one.attempt === checkpoint.attempt);
    if (index < 0) continue;
    const used = attempts.some((one, at) => at > index && one.first_step === checkpoint.step);
    parts.push(svg("circle",
      { class: `checkpoint ${checkpoint.state} ${used ? "used" : ""}`, cx: x(checkpoint.step), cy: y(index),
      r: used ? 6 : 4 },
      svg("title", {}, `step ${checkpoint.step}: ${checkpoint.state}`)));
  }
  const height = 26 + attempts.length * LINE;
  parts.push(svg("text", { class: "axis", x: LEFT, y: height - 4 }, "step 0"),
    svg("text", { class: "axis", x: WIDTH - 30, y: height - 4, "text-anchor": "end" }, `step ${most}`));
  const words = attempts.map((attempt) =>
    `attempt ${attempt.attempt} from step ${attempt.first_step} to ${attempt.last_step}`).join("; ");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tree of resumes" },
    svg("svg", { class: "tree", viewBox: `0 0 ${WIDTH} ${height + 4}`, role: "img", "aria-label": words }, parts));
}

// Returns the latest earlier attempt that had computed this attempt's first step.
function parentOf(attempts, index) {
  const step = attempts[index].first_step;
  for (let at = index - 1; at >= 0; at -= 1)
    if (attempts[at].first_step <= step && attempts[at].last_step >= step) return at;
  return step > 0 ? index - 1 : -1;
}

function listOf(checkpoints) {
  if (checkpoints.length === 0) return h("p", { class: "empty" }, "No checkpoint yet.");
  const rank = { deleted: 1 };
  const sorted = [...checkpoints].sort((a, b) => (rank[a.state] || 0) - (rank[b.state] || 0) || b.step - a.step);
  return table("Checkpoints", [">Step", ">Attempt", "State", ">Tokens", ">Size", "Written", "Problem"],
    sorted.slice(0, 400).map((one) => h("tr", { class: one.state === "deleted" ? "muted" : null },
      h("td", { class: "right" }, one.step), h("td", { class: "right" }, one.attempt),
      h("td", {}, h("span", { class: `checkpoint-state ${one.state}` }, one.state),
        one.finite ? "" : " (not finite)"),
      h("td", { class: "right" }, count(one.tokens)), h("td", { class: "right" }, bytes(one.bytes)),
      h("td", { class: "nowrap" }, dateTime(one.written_at)), h("td", {}, one.problem))));
}
