// All runs, with filter, sorting and selection for a comparison. The document holds only the visible rows, so that ten
// thousand runs cost as much as forty.
import { getJson, poll } from "/api.js";
import { h, replace } from "/dom.js";
import { ago, count, isLive, number, percent, seconds } from "/format.js";
import { errorBox, plural, sparkline, stateBadge, tellConnection } from "/parts.js";
import { settings } from "/settings.js";

const ROW = 38; // pixels; must equal the value in style.css
const SPARE = 12; // rows above and below the visible ones

const COLUMNS = [
  { id: "name", title: "Run", value: (run) => run.name, cell: (run) => nameCell(run) },
  { id: "state", title: "State", value: (run) => run.state, cell: (run) => stateBadge(run.state) },
  { id: "step", title: "Step", right: true, value: (run) => run.step, cell: (run) => progressCell(run) },
  { id: "loss", title: "Loss", right: true, value: (run) => (run.has_loss ? run.loss : Infinity),
    cell: (run) => (run.has_loss ? number(run.loss) : "–") },
  { id: "heldout_loss", title: "Held-out", right: true,
    value: (run) => (run.has_heldout_loss ? run.heldout_loss : Infinity),
    cell: (run) => (run.has_heldout_loss ? number(run.heldout_loss) : "–") },
  { id: "trend", title: "Trend", cell: (run) => sparkline(run.loss_trend || []) },
  { id: "tokens_per_second", title: "Tokens/s", right: true, value: (run) => run.tokens_per_second,
    cell: (run) => (run.tokens_per_second ? count(run.tokens_per_second) : "–") },
  { id: "ranks", title: "Ranks", right: true, value: (run) => run.ranks, cell: (run) => run.ranks },
  { id: "trouble", title: "Trouble", value: (run) => run.hangs * 1000 + run.restarts,
    cell: (run) => troubleCell(run) },
  { id: "user", title: "User", value: (run) => run.user, cell: (run) => run.user },
  { id: "submitted_at", title: "Submitted", right: true, value: (run) => run.submitted_at,
    cell: (run) => ago(run.submitted_at) },
];

// The reader's choices stay while one run is shown.
const chosen = { text: "", state: "", sort: "submitted_at", down: true, selected: new Set() };

export function show(main) {
  let runs = [];
  let shown = [];
  const body = h("tbody");
  const status = h("p", { class: "muted", role: "status" });
  const compare = h("a", { class: "button", href: "#/runs" }, "Compare");
  const filter =
    h("input", { type: "search", id: "filter", placeholder: "name, id, user, tag or note", value: chosen.text,
    oninput: () => { chosen.text = filter.value; arrange(); } });
  const state = h("select", { id: "state", onchange: () => { chosen.state = state.value; arrange(); } },
    h("option", { value: "" }, "all states"), h("option", { value: "live" }, "live"),
    h("option", { value: "trouble" }, "with trouble"),
    settings.run_states.map((name) => h("option", { value: name }, name)));
  state.value = chosen.state;
  const heads = COLUMNS.map((column) => headOf(column, () => arrange()));
  const scroll =
    h("div", { class: "scroll runs", tabindex: "0", role: "region", "aria-label": "Runs", onscroll: () => draw() },
    h("table", { class: "runs-table" }, h("caption", { class: "hidden" }, "Runs of this nsad"),
      h("thead", {},
        h("tr", {}, h("th", { scope: "col", class: "tick" }, h("span", { class: "hidden" }, "Select")),
        heads.map((head) => head.element))), body));
  const problem = h("div");
  replace(main, h("h1", {}, "Runs"),
    h("div", { class: "controls" }, h("label", { for: "filter" }, "Filter"), filter,
      h("label", { for: "state" }, "State"), state, compare, status),
    problem, scroll);

  function arrange() {
    const words = chosen.text.toLowerCase().split(/\s+/).filter(Boolean);
    shown = runs.filter((run) => fitsState(run) && words.every((word) => run.text.includes(word)));
    const column = COLUMNS.find((one) => one.id === chosen.sort);
    const sign = chosen.down ? -1 : 1;
    shown.sort((a, b) => sign * compareValues(column.value(a), column.value(b)));
    heads.forEach((head) => head.tell());
    const live = runs.filter((run) => isLive(run.state)).length;
    replace(status, `${shown.length} of ${runs.length} runs, ${live} live`);
    draw();
  }

  function draw() {
    const first = Math.max(0, Math.floor(scroll.scrollTop / ROW) - SPARE);
    const last = Math.min(shown.length, Math.ceil((scroll.scrollTop + Math.max(scroll.clientHeight, innerHeight)) / ROW) + SPARE);
    const focused = document.activeElement && body.contains(document.activeElement) ? document.activeElement.id : "";
    const space = (rows) => {
      if (rows <= 0) return null;
      const row = h("tr", { class: "space", "aria-hidden": "true" }, h("td", { colspan: COLUMNS.length + 1 }));
      row.style.height = `${rows * ROW}px`;
      return row;
    };
    replace(body, space(first), shown.slice(first, last).map((run) => rowOf(run)), space(shown.length - last));
    if (shown.length === 0 && runs.length > 0) replace(body,
      h("tr", {}, h("td", { colspan: COLUMNS.length + 1, class: "empty" }, "No run fits the filter.")));
    if (focused && document.getElementById(focused)) document.getElementById(focused).focus({ preventScroll: true });
    tellSelection();
  }

  function rowOf(run) {
    const box =
      h("input", { type: "checkbox", id: `tick-${run.id}`, "aria-label": `Select ${run.name} ${run.id} to compare`,
      onchange: () => { chosen.selected[box.checked ? "add" : "delete"](run.id); tellSelection(); } });
    box.checked = chosen.selected.has(run.id);
    return h("tr", {}, h("td", { class: "tick" }, box),
      COLUMNS.map((column) => h("td", { class: column.right ? "right" : null }, column.cell(run))));
  }

  function tellSelection() {
    const ids = [...chosen.selected];
    compare.textContent = ids.length < 2 ? "Select runs to compare" : `Compare ${ids.length} runs`;
    compare.classList.toggle("off", ids.length < 2);
    if (ids.length < 2) compare.removeAttribute("href");
    else compare.setAttribute("href", `#/compare/${ids.join(",")}`);
  }

  tellSelection();
  const failed = (error) => {
    tellConnection(runs.length ? error : null);
    replace(problem, error && !runs.length ? errorBox(error) : null);
  };
  return poll(2000, async () => {
    runs = readRows(await getJson("/v1/runs?all&rows"));
    if (runs.length === 0) {
      replace(body,
        h("tr", {},
        h("td", { colspan: COLUMNS.length + 1, class: "empty" }, "No runs yet. Submit one: ",
        h("code", {}, "nsactl submit run.toml"))));
      return;
    }
    arrange();
  }, failed);
}

function headOf(column, changed) {
  const element = h("th", { scope: "col", class: column.right ? "right" : null });
  if (!column.value) {
    element.append(column.title);
    return { element, tell() {} };
  }
  const arrow = h("span", { "aria-hidden": "true", class: "arrow" });
  element.append(h("button", { type: "button", class: "sort", onclick: () => {
    chosen.down = chosen.sort === column.id ? !chosen.down : column.id === "submitted_at";
    chosen.sort = column.id;
    changed();
  } }, column.title, arrow));
  return { element, tell() {
    const is_this = chosen.sort === column.id;
    if (is_this) element.setAttribute("aria-sort", chosen.down ? "descending" : "ascending");
    else element.removeAttribute("aria-sort");
    arrow.textContent = is_this ? (chosen.down ? " ↓" : " ↑") : "";
  } };
}

// Converts {"columns": [...], "items": [[...], ...]} to objects, and adds the text that the filter searches.
function readRows(answer) {
  return answer.items.map((values) => {
    const run = {};
    answer.columns.forEach((name, index) => { run[name] = values[index]; });
    run.text = [run.id, run.name, run.user, run.note, run.state, ...(run.tags || [])].join(" ").toLowerCase();
    return run;
  });
}

function fitsState(run) {
  if (chosen.state === "") return true;
  if (chosen.state === "live") return isLive(run.state);
  if (chosen.state === "trouble") return run.hangs + run.restarts > 0 || run.state === "failed"
    || (run.alarms || []).length > 0;
  return run.state === chosen.state;
}

function compareValues(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

function nameCell(run) {
  return [h("a", { href: `#/run/${run.id}`, id: `run-${run.id}` }, run.name || run.id), " ",
    h("span", { class: "muted id" }, run.id),
    (run.tags || []).map((tag) => [" ", h("span", { class: "tag" }, tag)])];
}

function progressCell(run) {
  const eta = isLive(run.state) && run.eta_seconds > 0 ? `, ${seconds(run.eta_seconds)} left` : "";
  return h("span", { title: `${percent(run.steps ? run.step / run.steps : 0)}${eta}` },
    `${count(run.step)} / ${count(run.steps)}`);
}

function troubleCell(run) {
  const parts = [];
  if (run.hangs) parts.push(plural(run.hangs, "hang"));
  if (run.restarts) parts.push(plural(run.restarts, "restart"));
  const alarms = run.alarms || [];
  if (alarms.length) parts.push(plural(alarms.length, "alarm"));
  if (parts.length === 0) return h("span", { class: "muted" }, "–");
  return h("span",
    { class: run.hangs || alarms.length ? "trouble" : "", title: [run.reason, ...alarms].filter(Boolean).join("; ") },
    parts.join(", "));
}
