// Elements that several views share.
import { h, replace, svg } from "/dom.js";
import { percent, stateSymbol } from "/format.js";

export function stateBadge(state) {
  return h("span", { class: `state state-${state}` }, `${stateSymbol(state)} ${state}`);
}

// A note above curves for which nsad has read only a few places of the file.
export function coarseNote(indexed) {
  return h("p", { class: "muted coarse" },
    `These curves are coarse: nobody has looked at this long run before. nsad has read ${percent(indexed)} of its `
    + "records; exact curves come by themselves.");
}

export function errorBox(error) {
  return h("div", { class: "error-box", role: "alert" }, error.message);
}

// Shows in the bar at the top whether the figures are still updated.
export function tellConnection(error) {
  const place = document.getElementById("connection");
  const text = error ? `Not up to date: ${error.message}` : "";
  if (place.textContent === text) return;
  replace(place, text);
  place.classList.toggle("broken", Boolean(error));
}

// Draws the last values of a curve, as high as a line of text.
export function sparkline(values, width = 84, height = 20) {
  const finite = values.filter((value) => Number.isFinite(value));
  if (finite.length < 2) return h("span", { class: "muted" }, "–");
  const least = Math.min(...finite);
  const range = Math.max(...finite) - least || 1;
  const points = finite.map((value, index) => {
    const x = 2 + (index / (finite.length - 1)) * (width - 4);
    const y = 2 + (1 - (value - least) / range) * (height - 4);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  return svg("svg", { class: "sparkline", width, height, "aria-hidden": "true" },
    svg("polyline", { points: points.join(" ") }));
}

// Draws a bar that is filled to this part, with its value as text beside it.
export function meter(part, label) {
  const clamped = Math.max(0, Math.min(1, part || 0));
  return h("span", { class: "meter" },
    h("progress", { max: 1, value: clamped, "aria-label": label }), h("span", { class: "meter-text" }, label));
}

export function plural(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

export function facts(rows) {
  return h("dl", { class: "facts" },
    rows.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function headCell(head) {
  const right = typeof head === "string" && head.startsWith(">");
  return h("th", { scope: "col", class: right ? "right" : null }, right ? head.slice(1) : head);
}

// `heads` are texts and links; ">Step" is the head of a column of numbers. `rows` are elements. Wide tables scroll
// separately, by keyboard too.
export function table(caption, heads, rows, attributes = {}) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", attributes, h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, heads.map((head) => headCell(head)))),
      h("tbody", {}, rows)));
}
