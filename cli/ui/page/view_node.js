// This node: its disk, CPU slots and GPUs, and the runs that hold them.
import { getJson, poll } from "/api.js";
import { h, replace } from "/dom.js";
import { ago, bytes, count, isLive, percent, seconds } from "/format.js";
import { errorBox, facts, meter, stateBadge, table, tellConnection } from "/parts.js";

export function show(main) {
  const place = h("div");
  let drawn = false;
  replace(main, h("h1", {}, "Node"), place);
  return poll(2000, async () => {
    const [daemon, answer] = await Promise.all([getJson("/v1/daemon"), getJson("/v1/runs")]);
    drawn = true;
    draw(place, daemon, answer.items.filter((run) => isLive(run.state)));
  }, (error) => {
    tellConnection(drawn ? error : null);
    if (error && !drawn) replace(place, errorBox(error));
  });
}

function draw(place, daemon, live) {
  const used = daemon.disk_size_bytes - daemon.disk_free_bytes;
  replace(place,
    facts([
      ["Name", daemon.node], ["nsad", `${daemon.version} (${daemon.commit}), pid ${daemon.pid}`],
      ["Started", ago(daemon.started_at)],
      ["Disk", [`${bytes(daemon.disk_free_bytes)} free of ${bytes(daemon.disk_size_bytes)}`,
        usedMeter(used / daemon.disk_size_bytes)]],
      ["CPU slots", [`${daemon.cpu_slots_used} of ${daemon.cpu_slots} in use`,
        usedMeter(daemon.cpu_slots_used / (daemon.cpu_slots || 1))]],
      ["Ledger",
        daemon.ledger_ok ? "healthy" : h("span", { class: "trouble" }, "in trouble: see nsactl daemon status")],
      ["Disk reserve", daemon.reserve_held ? "held" : h("span", { class: "trouble" }, "spent: free disk space")],
      ["Delay of nsad's loop", `${seconds(daemon.loop_delay_seconds.p99)} (99 % of ticks)`],
      ["Metrics", daemon.metrics || "off"], ["State folder", h("code", {}, daemon.state_folder)],
    ]),
    h("h2", {}, "GPUs"), gpuTable(daemon.gpus || []),
    h("h2", {}, "Live runs"), liveTable(live));
}

function usedMeter(part) {
  return meter(part, `${percent(part)} used`);
}

// Shows all that nsad reports of a GPU: numbers by their unit, everything else unchanged.
function gpuTable(gpus) {
  if (gpus.length === 0) return h("p", { class: "empty" },
    "nsad found no GPU on this node. Runs compute on CPU slots.");
  const names = [...new Set(gpus.flatMap(Object.keys))];
  const show_value = (name, value) => {
    if (value === null || value === undefined || value === "") return "–";
    if (typeof value === "number") return name.endsWith("_bytes") ? bytes(value) : count(value);
    return typeof value === "object" ? JSON.stringify(value) : String(value);
  };
  return table("GPUs", names.map((name) => name.replaceAll("_", " ")),
    gpus.map((gpu) => h("tr", {}, names.map((name) => h("td", {}, show_value(name, gpu[name]))))));
}

function liveTable(live) {
  if (live.length === 0) return h("p", { class: "empty" }, "No run is live.");
  return table("Live runs", ["Run", "User", "State", ">Ranks", ">Step", "Why it waits"], live.map((run) => h("tr", {},
    h("td", {}, h("a", { href: `#/run/${run.id}` }, run.name), " ", h("span", { class: "muted id" }, run.id)),
    h("td", {}, run.user),
    h("td", {}, stateBadge(run.state)), h("td", { class: "right" }, run.ranks),
    h("td", { class: "right" }, `${run.step} / ${run.steps}`),
    h("td", {}, run.reason || "–"))));
}
