// The ranks' output as it comes. Every request names the positions that have been read, so that no line is repeated
// and none is missed.
import { getLines, poll, runPath } from "/api.js";
import { h, replace } from "/dom.js";
import { tellConnection } from "/parts.js";

const KEEP = 5000; // most lines in the document
const FIRST = 400;

export function logsTab(first) {
  const run = first.summary.id;
  let rank = "all";
  let attempt = "";
  let positions = new Map(); // "attempt.rank" -> position
  let end = () => {};
  let query_id = 0;
  const lines = h("div", { class: "log-lines" });
  const scroll = h("div", { class: "log", tabindex: "0", role: "log", "aria-label": "Output of the ranks" }, lines);
  const follow = h("input", { type: "checkbox", id: "log-follow" });
  follow.checked = true;
  const find =
    h("input", { type: "search", id: "log-find", placeholder: "only lines with", oninput: () => filter() });
  const ranks = h("select", { id: "log-rank", onchange: () => { rank = ranks.value; restart(); } },
    h("option", { value: "all" }, "all"),
    Array.from({ length: first.summary.ranks }, (_, index) => h("option", { value: index }, index)));
  const attempts = h("select", { id: "log-attempt", onchange: () => { attempt = attempts.value; restart(); } });
  const note = h("span", { class: "muted", role: "status" });

  function restart() {
    end();
    positions = new Map();
    replace(lines);
    const id = (query_id += 1);
    end = poll(1500, () => ask(id), tellConnection);
  }

  async function ask(id) {
    const query = new URLSearchParams({ rank, positions: "" });
    if (attempt) query.set("attempt", attempt);
    if (positions.size) query.set("from", [...positions.values()].join(","));
    else query.set("tail", FIRST);
    const got = await getLines(runPath(run, `/logs?${query}`));
    if (id !== query_id) return;
    for (const line of got) positions.set(`${line.attempt}.${line.rank}`, line.position);
    append(got.filter((line) => line.stream !== "position" || line.text));
  }

  function append(got) {
    lines.append(...got.map(lineOf));
    while (lines.childElementCount > KEEP) lines.firstElementChild.remove();
    if (got.length) filter();
    replace(note, lines.childElementCount ? `${lines.childElementCount} lines` : "No output yet.");
    if (follow.checked && got.length) scroll.scrollTop = scroll.scrollHeight;
  }

  function filter() {
    const text = find.value.toLowerCase();
    for (const line of lines.children) line.hidden = text !== "" && !line.textContent.toLowerCase().includes(text);
  }

  restart();
  return {
    element: h("div", {}, h("div", { class: "controls" }, h("label", { for: "log-rank" }, "Rank"), ranks,
      h("label", { for: "log-attempt" }, "Attempt"), attempts, h("label", { for: "log-find" }, "Find"), find,
      h("span", { class: "check" }, follow, h("label", { for: "log-follow" }, "Keep the newest in sight")), note),
        scroll),
    update(detail) {
      if (attempts.childElementCount === detail.attempts.length + 1) return;
      const was = attempts.value;
      replace(attempts, h("option", { value: "" }, "newest"),
        detail.attempts.map((one) => h("option", { value: one.attempt }, one.attempt)));
      attempts.value = was;
    },
    end() {
      query_id += 1;
      end();
    },
  };
}

function lineOf(line) {
  const level = /\b(ERROR|FATAL)\b/.test(line.text) ? "log-error" : /\bWARN(ING)?\b/.test(line.text) ? "log-warning"
    : "";
  return h("div", { class: `log-line ${level}` }, h("span", { class: "log-rank" }, `${line.attempt}.${line.rank}`),
    h("span", { class: "log-text" }, line.text));
}
