// Requested and effective values of every toggle, where the request came from, and what changed
// between attempts.
import { h, replace } from "/dom.js";
import { table } from "/parts.js";

export function togglesTab() {
  const place = h("div");
  let key = "";
  let onlySet = true;
  let last = null;
  const box = h("input",
    { type: "checkbox", id: "toggles-all", onchange: () => { onlySet = !box.checked; key = ""; draw(last); } });

  function draw(detail) {
    last = detail;
    const next = JSON.stringify([detail.toggles, onlySet]);
    if (next === key) return;
    key = next;
    replace(place, tableOf(detail.toggles, onlySet), programsOf(detail.attempts));
  }
  return {
    element: h("div", {},
      h("div", { class: "controls" },
      h("span", { class: "check" }, box, h("label", { for: "toggles-all" }, "Toggles without a value as well")),
      h("span", { class: "muted" }, "◆ differs from what was requested; ▲ changed since the attempt before")), place),
    update: draw,
    end() {},
  };
}

function tableOf(toggles, onlySet) {
  const attempts = [...new Set(toggles.map((toggle) => toggle.attempt))].sort((a, b) => a - b);
  const names = [...new Set(toggles.map((toggle) => toggle.name))].sort();
  const at = (name, attempt) => toggles.find((toggle) => toggle.name === name && toggle.attempt === attempt);
  const rows = names.filter((name) => !onlySet || attempts.some((attempt) => isSet(at(name, attempt))))
    .map((name) => {
    const newest = at(name, attempts[attempts.length - 1]) || at(name, attempts[0]);
    return h("tr", {}, h("th", { scope: "row" }, h("code", {}, name)), h("td", {}, value(newest.requested)),
      h("td", {}, newest.origin),
      attempts.map((attempt, index) =>
        effectiveCell(at(name, attempt), index > 0 ? at(name, attempts[index - 1]) : null)));
  });
  if (rows.length === 0) return h("p", { class: "empty" }, "The ranks have not reported toggles yet.");
  return table("Toggles",
    ["Toggle", "Requested", "Origin", ...attempts.map((attempt) => `Effective in attempt ${attempt}`)], rows);
}

function isSet(toggle) {
  return toggle && (toggle.requested !== "" || toggle.effective !== "" || toggle.origin !== "default");
}

function effectiveCell(toggle, before) {
  if (!toggle) return h("td", { class: "muted" }, "–");
  const differs = toggle.effective !== "" && toggle.requested !== "" && toggle.requested !== "auto"
    && toggle.effective !== toggle.requested;
  const changed = before && before.effective !== toggle.effective;
  return h("td", { class: differs || changed ? "changed" : null }, value(toggle.effective), differs ? " ◆" : "",
    changed ? " ▲" : "");
}

function value(text) {
  return text === "" ? h("span", { class: "muted" }, "–") : h("code", {}, text);
}

// Shows builds, digests and devices of each attempt. For later attempts it shows only what differs.
function programsOf(attempts) {
  const flat = attempts.map((attempt) => flatten(attempt.provenance || {}));
  const names = [...new Set(flat.flatMap(Object.keys))].sort();
  const rows =
    names.map((name) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, name)), flat.map((values, index) => {
    const changed = index > 0 && flat[index - 1][name] !== values[name];
    return h("td", { class: changed ? "changed" : null }, h("code", {}, values[name] || "–"), changed ? " ▲" : "");
  })));
  return [h("h2", {}, "Programs and data"),
    table("Programs and data by attempt", ["Fact", ...attempts.map((attempt) => `Attempt ${attempt.attempt}`)],
    rows)];
}

export function flatten(value, name = "", into = {}) {
  if (value !== null && typeof value === "object" && Object.keys(value).length > 0)
    for (const [key, inner] of Object.entries(value)) flatten(inner, name ? `${name}.${key}` : key, into);
  else if (name) into[name] = typeof value === "string" ? value : JSON.stringify(value);
  return into;
}
