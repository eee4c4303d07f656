// The events that nsad recorded of the run, newest first.
import { getJson, runPath } from "/api.js";
import { h, replace } from "/dom.js";
import { dateTime } from "/format.js";
import { errorBox, table } from "/parts.js";

const MOST = 500;

export function eventsTab(first) {
  const run = first.summary.id;
  let all = false;
  let newest = -1;
  let events = [];
  const place = h("div");
  const box = h("input", { type: "checkbox", id: "events-all", onchange: () => { all = box.checked; draw(); } });

  async function load() {
    try {
      events = (await getJson(runPath(run, `/events?tail=${4 * MOST}`))).items;
      draw();
    } catch (error) {
      replace(place, errorBox(error));
    }
  }

  function draw() {
    const seen = events.filter((event) => all || event.severity !== "info"
      || !["checkpoint", "rank_memory", "rank_toggles"].includes(event.kind));
    replace(place, table("Events of the run", ["Time", ">Attempt", ">Rank", "What happened"],
      seen.slice(-MOST).reverse().map((event) => h("tr", { class: `event-${event.severity}` },
        h("td", { class: "nowrap" }, dateTime(event.at)), h("td", { class: "right" }, event.attempt || "–"),
        h("td", { class: "right" }, event.rank >= 0 ? event.rank : "–"),
        h("td", {}, event.severity === "info" ? null : h("b", {}, `${event.severity}: `), event.text)))));
  }

  return {
    element: h("div", {},
      h("div", { class: "controls" },
      h("span", { class: "check" }, box,
      h("label", { for: "events-all" }, "Checkpoints, memory and toggles as well"))), place),
    update(detail) {
      const last = detail.last_events.length ? detail.last_events[detail.last_events.length - 1].sequence : 0;
      if (last === newest) return;
      newest = last;
      load();
    },
    end() {},
  };
}
