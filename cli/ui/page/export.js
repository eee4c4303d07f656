// Exports a chart as SVG, PNG, or its values as CSV. Pictures are redrawn for paper: dark on white.
import { download, h } from "/dom.js";

const WIDTH = 960;
const HEIGHT = 480;
const EDGE = { left: 84, right: 20, top: 44, bottom: 46 };
const COLOURS = ["#1f4fd8", "#c2410c", "#047857", "#9333ea", "#b91c1c", "#0e7490", "#a16207", "#4b5563"];
const MARKS = { hang: "#b91c1c", restart: "#a16207", resume: "#1f4fd8" };

export function exportButtons(chart, fileName) {
  const button = (name, meaning, work) =>
    h("button",
      { type: "button", class: "quiet small", title: meaning, "aria-label": `${meaning}: ${chart.title}`,
      onclick: work }, name);
  const of = (ending) => `${fileName}.${ending}`;
  return [
    button("SVG", "Save as SVG", () => download(of("svg"), new Blob([toSvg(chart)], { type: "image/svg+xml" }))),
    button("PNG", "Save as PNG", async () => download(of("png"), await toPng(chart))),
    button("CSV", "Save values as CSV", () => download(of("csv"), new Blob([toCsv(chart)], { type: "text/csv" }))),
  ];
}

// Returns the values themselves, even if the curve is smoothed.
export function toCsv(chart) {
  const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const curves = chart.curves.filter((curve) => !curve.faint);
  const rows = new Map();
  curves.forEach((curve, index) => {
    for (const [x, y] of curve.values || curve.points) {
      if (!rows.has(x)) rows.set(x, new Array(curves.length).fill(""));
      rows.get(x)[index] = y;
    }
  });
  const place = (x) => (chart.options.time ? new Date(x).toISOString() : x);
  const lines = [...rows].sort((a, b) => a[0] - b[0]).map(([x, values]) => [place(x), ...values].join(","));
  return [["x", ...curves.map((curve) => quote(curve.name))].join(","), ...lines].join("\r\n") + "\r\n";
}

export function toSvg(chart) {
  const [fromX, toX] = chart.graph ? chart.graph.xAxisRange() : [0, 1];
  const [fromY, toY] = chart.graph ? chart.graph.yAxisRange(0) : [0, 1];
  const y_of = chart.options.log ? Math.log10 : (value) => value;
  const width = WIDTH - EDGE.left - EDGE.right;
  const height = HEIGHT - EDGE.top - EDGE.bottom;
  const x = (value) => EDGE.left + ((value - fromX) / (toX - fromX || 1)) * width;
  const share = (value) => (y_of(value) - y_of(fromY)) / (y_of(toY) - y_of(fromY) || 1);
  const y = (value) => HEIGHT - EDGE.bottom - share(value) * height;
  const size = `viewBox="0 0 ${WIDTH} ${HEIGHT}" width="${WIDTH}" height="${HEIGHT}"`;
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="sans-serif" font-size="12">`,
    `<title>${escape(chart.title)}</title><rect width="100%" height="100%" fill="#fff"/>`,
    text(EDGE.left, 20, chart.title, 'font-size="15" font-weight="600"'),
    '<clipPath id="area">',
    `<rect x="${EDGE.left}" y="${EDGE.top}" width="${width}" height="${height}"/></clipPath>`];
  for (const value of ticks(fromY, toY, chart.options.log))
    parts.push(line(EDGE.left, y(value), WIDTH - EDGE.right, y(value), "#e5e7eb"),
      text(EDGE.left - 8, y(value) + 4, chart.format(value), 'text-anchor="end" fill="#374151"'));
  for (const value of ticks(fromX, toX, false))
    parts.push(text(x(value), HEIGHT - EDGE.bottom + 18, chart.formatTick(value),
      'text-anchor="middle" fill="#374151"'));
  for (const mark of chart.marks.filter((one) => MARKS[one.kind] && one.x >= fromX && one.x <= toX))
    parts.push(line(x(mark.x), EDGE.top, x(mark.x), HEIGHT - EDGE.bottom, MARKS[mark.kind], 'stroke-dasharray="4 3"'),
      text(x(mark.x) + 4, EDGE.top + 12, mark.label, `fill="${MARKS[mark.kind]}"`));
  let key = EDGE.left;
  for (const curve of chart.curves) {
    const seen = curve.points.filter((point) => !chart.options.log || point[1] > 0);
    const path = seen.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ");
    const stroke = COLOURS[curve.colour % COLOURS.length];
    const pen = `fill="none" stroke="${stroke}" stroke-width="${curve.faint ? 0.6 : 1.7}"`;
    parts.push(`<polyline clip-path="url(#area)" ${pen} points="${path}"/>`);
    if (curve.faint) continue;
    parts.push(line(key, 32, key + 16, 32, stroke, 'stroke-width="3"'),
      text(key + 22, 36, curve.label || curve.name, 'fill="#111827"'));
    key += 40 + 7 * (curve.label || curve.name).length;
  }
  return parts.join("\n") + "\n</svg>\n";
}

async function toPng(chart) {
  const image = new Image();
  const url = URL.createObjectURL(new Blob([toSvg(chart)], { type: "image/svg+xml" }));
  image.src = url;
  await image.decode();
  const canvas = h("canvas", { width: 2 * WIDTH, height: 2 * HEIGHT });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * WIDTH, 2 * HEIGHT);
  URL.revokeObjectURL(url);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

// Returns about six round values.
function ticks(from, to, log) {
  if (log) {
    const powers = [];
    for (let power = Math.ceil(Math.log10(from)); power <= Math.log10(to); power += 1) powers.push(10 ** power);
    return powers.length > 1 ? powers : [from, to];
  }
  const rough = (to - from) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const values = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step)
    values.push(Number(value.toPrecision(12)));
  return values;
}

function line(x1, y1, x2, y2, stroke, rest = "") {
  const [fromX, fromY, toX, toY] = [x1, y1, x2, y2].map((value) => value.toFixed(1));
  return `<line x1="${fromX}" y1="${fromY}" x2="${toX}" y2="${toY}" stroke="${stroke}" ${rest}/>`;
}
function text(x, y, content, rest = "") {
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" ${rest}>${escape(content)}</text>`;
}
function escape(content) {
  return String(content).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
