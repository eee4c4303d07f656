// One run: its facts and progress at the top, and below them a tab for each question about it.
import { getJson, poll, post, runPath } from "/api.js";
import { h, replace } from "/dom.js";
import { ago, bytes, count, dateTime, isLive, number, percent, seconds } from "/format.js";
import { errorBox, facts, meter, plural, stateBadge, tellConnection } from "/parts.js";
import { settings } from "/settings.js";
import { checkpointsTab } from "/tab_checkpoints.js";
import { curvesTab } from "/tab_curves.js";
import { eventsTab } from "/tab_events.js";
import { hangsTab } from "/tab_hangs.js";
import { logsTab } from "/tab_logs.js";
import { ranksTab } from "/tab_ranks.js";
import { togglesTab } from "/tab_toggles.js";

// Each tab is created with the run's detail, and has {element, update(detail), end()}.
const TABS = {
  curves: { title: "Curves", create: curvesTab },
  ranks: { title: "Ranks", create: ranksTab },
  hangs: { title: "Hangs", create: hangsTab, count: (detail) => (detail.hangs || []).length },
  checkpoints: { title: "Checkpoints", create: checkpointsTab,
    count: (detail) => detail.checkpoints.filter((one) => one.state !== "deleted").length },
  toggles: { title: "Toggles", create: togglesTab },
  events: { title: "Events", create: eventsTab },
  logs: { title: "Logs", create: logsTab },
};

export function show(main, [run, asked = "curves"]) {
  const name = TABS[asked] ? asked : "curves";
  const head = makeHead();
  const tabs = h("nav", { class: "tabs", "aria-label": "About this run" });
  const place = h("div", { class: "tab" });
  let tab = null;
  let ended = false;
  replace(main, head.element, tabs, place);

  const update = (detail) => {
    if (ended) return; // requested before the reader moved to another view
    drawHead(head, detail, settings.actions);
    drawTabs(tabs, detail, run, name);
    document.title = `${detail.summary.name} – nsad`;
    if (!tab) {
      tab = TABS[name].create(detail);
      replace(place, tab.element);
    }
    tab.update(detail);
  };
  const refresh = async () => update(await getJson(runPath(run)));
  const stop = poll(1500, refresh, (error) => {
    tellConnection(tab ? error : null);
    if (error && !tab) replace(place, errorBox(error), h("a", { href: "#/runs" }, "Show all runs"));
  });
  return () => {
    ended = true;
    stop();
    if (tab) tab.end();
    document.title = "nsad";
  };
}

function drawTabs(tabs, detail, run, name) {
  const key = Object.values(TABS).map((tab) => (tab.count ? tab.count(detail) : 0)).join();
  if (tabs.dataset.key === key) return; // focus stays where it is
  tabs.dataset.key = key;
  replace(tabs, Object.entries(TABS).map(([id, tab]) => {
    const number_of = tab.count ? tab.count(detail) : 0;
    return h("a", { href: `#/run/${encodeURIComponent(run)}/${id}`, "aria-current": id === name ? "page" : null },
      tab.title, number_of ? h("span", { class: "badge" }, number_of) : null);
  }));
}

// Redraws only the parts that change, and the buttons only if they differ, so that the focus stays where it is.
function makeHead() {
  const head = { name: h("h1"), about: h("span", { class: "about" }), actions: h("span", { class: "actions" }),
    facts: h("div") };
  head.element = h("div", {}, h("div", { class: "title" }, head.name, head.about, head.actions), head.facts);
  return head;
}

function drawHead(head, detail, actions) {
  const run = detail.summary;
  const key = JSON.stringify([run, detail.attempts.length, detail.came]);
  if (head.element.dataset.key === key) return;
  head.element.dataset.key = key;
  if (head.name.textContent !== run.name) replace(head.name, run.name);
  replace(head.about, h("span", { class: "muted id" }, run.id), stateBadge(run.state),
    (run.tags || []).map((tag) => h("span", { class: "tag" }, tag)));
  if (actions) drawActions(head.actions, run);
  const done = run.steps ? run.step / run.steps : 0;
  replace(head.facts,
    run.reason ? h("p", { class: "reason" }, run.reason) : null,
    (run.alarms || []).map((alarm) => h("p", { class: "alarm" }, `⚠ ${alarm}`)),
    run.inject ? h("p", { class: "muted" }, `A fault is injected on purpose: ${run.inject}.`) : null,
    facts([
      ["Step", [`${run.step} of ${run.steps} `, meter(done, percent(done))]],
      ["Loss", run.has_loss ? number(run.loss) : "–"],
      ["Held-out loss", run.has_heldout_loss ? number(run.heldout_loss) : "–"],
      ["Tokens/s", run.tokens_per_second ? count(run.tokens_per_second) : "–"],
      ["Tokens", count(run.tokens)],
      isLive(run.state) ? ["Time left", run.eta_seconds ? seconds(run.eta_seconds) : "–"]
        : ["Ended", ago(run.ended_at)],
      ["Attempts", `${detail.attempts.length} (${plural(run.restarts, "restart")}, ${plural(run.hangs, "hang")})`],
      ["Ranks", run.ranks],
      detail.came && detail.came.disk_bytes ? ["On disk", bytes(detail.came.disk_bytes)] : null,
      ["Submitted", dateTime(run.submitted_at)],
    ]));
}

// [verb of nsad, text of the button, question before it]
function actionsOf(run) {
  if (!isLive(run.state)) return [["resume", "Resume", `Resume ${run.name} from its newest checkpoint?`]];
  return [["checkpoint", "Checkpoint now", `Save a checkpoint of ${run.name} after this step?`],
    ["stop", "Stop", `Save a checkpoint of ${run.name}, and end it?`],
    ["cancel", "Cancel", `End ${run.name} now, without a checkpoint?`]];
}

function drawActions(place, run) {
  const actions = actionsOf(run);
  const key = JSON.stringify(actions);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const had_focus = place.contains(document.activeElement);
  const act = async (verb, question) => {
    if (!confirm(question)) return;
    try {
      await post(runPath(run.id, `/${verb}`));
    } catch (error) {
      alert(error.message);
    }
  };
  replace(place, actions.map(([verb, title, question]) =>
    h("button", { type: "button", class: "small", id: `act-${verb}`, onclick: () => act(verb, question) }, title)));
  if (had_focus) place.querySelector("button").focus();
}
