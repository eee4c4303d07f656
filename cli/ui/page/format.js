// Formats values for people.

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= limit) return `${trim(value / (limit === 1e4 ? 1e3 : limit), 3)}${unit}`;
  return trim(value, 4);
}

export function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${trim(value, 3)} ${units[unit]}`;
}

export function seconds(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${trim(value * 1e6, 3)} µs`;
  if (size < 1) return `${trim(value * 1e3, 3)} ms`;
  if (size < 60) return `${trim(value, 3)} s`;
  const whole = Math.round(size);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export function number(value, digits = 4) {
  return isNumber(value) ? trim(value, digits) : "–";
}

export function percent(value) {
  return isNumber(value) ? `${trim(value * 100, 3)} %` : "–";
}

function trim(value, digits) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e7) return String(Number(value.toPrecision(digits)));
  return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
}

// Returns "3 min ago" for a time of the API.
export function ago(time, now = Date.now()) {
  if (!time) return "–";
  const age = (now - Date.parse(time)) / 1000;
  if (age < 5) return "just now";
  return `${seconds(Math.round(age)).split(" ").slice(0, 2).join(" ")} ago`;
}

export function dateTime(time) {
  if (!time) return "–";
  const at = new Date(time);
  const two = (part) => String(part).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
    `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

const SYMBOLS = {
  queued: "○", starting: "◔", running: "●", restarting: "↻", stopping: "◕", completed: "✔", stopped: "■",
  failed: "✖", cancelled: "⊘",
};
export function stateSymbol(state) {
  return SYMBOLS[state] || "•";
}
export function isLive(state) {
  return ["queued", "starting", "running", "restarting", "stopping"].includes(state);
}
