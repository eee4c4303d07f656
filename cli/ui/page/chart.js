// One diagram of curves over a common x axis, drawn by dygraphs. It has marks for events of the run, a read-out, and
// zoom by mouse and keyboard. A table shows the same values to people who cannot see curves.
//
// Curve: {name, colour index, points: [[x, y], ...], faint}. Mark: {x, kind, text}.
import { h, replace } from "/dom.js";
import { colour, onTheme, seriesColours } from "/theme.js";

// The legend sets style attributes, which this page's policy forbids. The read-out shows the same values.
window.Dygraph.PLUGINS = window.Dygraph.PLUGINS.filter((plugin) => plugin !== window.Dygraph.Plugins.Legend);

const MARK_COLOURS = { hang: "bad", restart: "warn", resume: "accent", checkpoint: "muted-line", anomaly: "bad" };

export class Chart {
  // `group` holds the charts that zoom together. `format` formats y values. `formatX` formats x values in the
  // read-out, and `formatTick` at the axis.
  constructor({ title, group, format, formatX, formatTick }) {
    this.options = { log: false, time: false };
    this.title = title;
    this.format = format;
    this.formatX = formatX;
    this.formatTick = formatTick;
    this.group = group;
    this.asked = false; // whether records have arrived
    this.curves = [];
    this.marks = [];
    this.readout = h("p", { class: "readout" });
    this.canvas = h("div", { class: "plot", tabindex: "0", role: "img", onkeydown: (event) => this.onKey(event) });
    this.tools = h("div", { class: "chart-tools" });
    this.element = h("section", { class: "chart", "aria-label": title },
      h("div", { class: "chart-head" }, h("h2", {}, title), this.tools), this.readout, this.canvas);
    this.endTheme = onTheme(() => this.draw());
    this.resized = new ResizeObserver(() => this.graph && this.graph.resize());
    this.resized.observe(this.canvas);
    this.isSeen = true; // until the browser reports otherwise
    this.seen = new IntersectionObserver(([entry]) => {
      this.isSeen = entry.isIntersecting;
      if (this.isSeen) this.follow();
    });
    this.seen.observe(this.canvas);
    group.add(this);
    this.draw();
  }

  end() {
    this.endTheme();
    this.resized.disconnect();
    this.seen.disconnect();
    if (this.graph) this.graph.destroy();
    this.graph = null;
    this.group.charts.delete(this);
  }

  set(curves, marks, options) {
    this.asked = true;
    this.curves = curves.filter((curve) => curve.points.length > 0);
    this.marks = marks;
    this.options = { ...this.options, ...options };
    this.draw();
    this.showReadout(null);
  }

  draw() {
    // Only the values have changed, so a drag of the mouse that is in progress continues.
    const names = this.curves.map((curve) => curve.name).join("\n");
    if (this.graph && names !== "" && names === this.drawnNames && this.options.time === this.drawnTime) {
      this.drawnWindow = this.group.window;
      this.graph.updateOptions({ ...this.settings(), file: this.rows() });
      this.canvas.setAttribute("aria-label", `${this.title}: ${this.inWords()}`);
      return;
    }
    this.drawnNames = names;
    this.drawnTime = this.options.time;
    if (this.graph) this.graph.destroy();
    this.graph = null;
    this.canvas.setAttribute("aria-label", `${this.title}: ${this.inWords()}`);
    if (this.curves.length === 0) {
      replace(this.canvas, h("p", { class: "empty" }, this.asked ? "No records yet." : "Reading the records …"));
      this.showReadout(null);
      return;
    }
    replace(this.canvas);
    this.drawnWindow = this.group.window;
    this.graph = new window.Dygraph(this.canvas, this.rows(), this.settings());
    this.showReadout(null);
  }

  // Draws the group's range, unless the chart is not visible or shows that range already.
  follow() {
    if (!this.graph || !this.isSeen || this.drawnWindow === this.group.window) return;
    this.drawnWindow = this.group.window;
    this.graph.updateOptions({ dateWindow: this.group.window, valueRange: null });
  }

  settings() {
    const grid = colour("grid");
    const series = {};
    const colours = seriesColours();
    for (const curve of this.curves) {
      series[curve.name] = {
        color: colours[curve.colour % colours.length],
        strokeWidth: curve.faint ? 0.6 : 1.7,
        plotter: curve.faint ? drawFaint : window.Dygraph.Plotters.linePlotter,
        drawPoints: curve.points.length === 1 || Boolean(curve.dots),
        pointSize: 2.5,
        strokePattern: curve.dashed ? [5, 3] : null,
      };
    }
    return {
      labels: ["x", ...this.curves.map((curve) => curve.name)],
      series,
      connectSeparatedPoints: true,
      legend: "never",
      logscale: this.options.log,
      dateWindow: this.group.window,
      animatedZooms: false,
      axisLineColor: grid,
      gridLineColor: grid,
      highlightCircleSize: 3.5,
      labelsKMB: false,
      rightGap: 8,
      axes: {
        x: {
          // dygraphs has its own formatter for dates, which even an undefined value would replace.
          ...(this.options.time ? {} : { axisLabelFormatter: (value) => this.formatTick(value) }),
          axisLabelWidth: 74,
          pixelsPerLabel: 64,
        },
        y: { axisLabelFormatter: (value) => this.format(value), axisLabelWidth: 66, pixelsPerLabel: 30 },
      },
      underlayCallback: (context, area, graph) => this.drawMarks(context, area, graph),
      zoomCallback: (least, greatest) => this.group.zoom(this.isWhole(least, greatest) ? null : [least, greatest]),
      drawCallback: (graph) => this.onMoved(graph),
      highlightCallback: (event, x, points) => this.group.highlight(x, points[0] ? points[0].idx : 0, this),
      unhighlightCallback: () => this.group.highlight(null, 0, this),
    };
  }

  // Returns rows over all x values of any curve.
  rows() {
    const cells = new Map();
    this.curves.forEach((curve, index) => {
      for (const [x, y] of curve.points) {
        if (!Number.isFinite(x) || (this.options.log && !(y > 0))) continue;
        let row = cells.get(x);
        if (!row) cells.set(x, (row = new Array(this.curves.length).fill(null)));
        row[index] = y;
      }
    });
    const rows = [...cells].sort((a, b) => a[0] - b[0]);
    return rows.map(([x, values]) => [this.options.time ? new Date(x) : x, ...values]);
  }

  // A drag with Shift moves only this chart inside dygraphs, so the other charts must follow.
  onMoved(graph) {
    if (graph !== this.graph || !graph.isZoomed("x")) return;
    const window = graph.xAxisRange();
    if (this.drawnWindow && this.drawnWindow[0] === window[0] && this.drawnWindow[1] === window[1]) return;
    this.drawnWindow = window;
    this.group.zoom(window);
  }

  isWhole(least, greatest) {
    const [from, to] = this.graph.xAxisExtremes();
    return least <= from && greatest >= to;
  }

  drawMarks(context, area, graph) {
    context.save();
    const at = (mark) => Math.round(graph.toDomXCoord(mark.x)) + 0.5;
    const seen = this.marks.filter((mark) => at(mark) >= area.x && at(mark) <= area.x + area.w);
    const labels = [];
    let lastTick = -10;
    for (const mark of seen) {
      const x = at(mark);
      context.strokeStyle = context.fillStyle = colour(MARK_COLOURS[mark.kind] || "muted-line");
      context.beginPath();
      if (mark.kind === "checkpoint") {
        if (x - lastTick < 4) continue; // more would be a solid line
        lastTick = x;
        context.moveTo(x - 3.5, area.y + area.h);
        context.lineTo(x + 3.5, area.y + area.h);
        context.lineTo(x, area.y + area.h - 6);
        context.fill();
        continue;
      }
      context.setLineDash(mark.kind === "hang" ? [] : [4, 3]);
      context.lineWidth = mark.kind === "hang" ? 1.6 : 1.2;
      context.moveTo(x, area.y);
      context.lineTo(x, area.y + area.h);
      context.stroke();
      context.font = "11px system-ui, sans-serif";
      if (seen.length > 400) continue; // there is no room for labels
      const label = mark.label || "";
      const width = context.measureText(label).width;
      const left = x + 4 + width > area.x + area.w ? x - 4 - width : x + 4;
      labels.push({ label, left, top: area.y + (mark.kind === "hang" ? 22 : 10), width, ink: context.fillStyle });
    }
    context.setLineDash([]);
    for (const { label, left, top, width, ink } of labels) { // above all lines
      context.fillStyle = colour("paper");
      context.fillRect(left - 1, top - 9, width + 2, 12);
      context.fillStyle = ink;
      context.fillText(label, left, top);
    }
    context.restore();
  }

  // Shows the values at x, or at the end of the curves. They are unsmoothed even if the curve is smoothed.
  showReadout(x) {
    const colours = seriesColours();
    const parts = this.curves.filter((curve) => !curve.faint).map((curve) => {
      const values = curve.values || curve.points;
      const point = x === null ? values[values.length - 1] : nearest(values, x);
      const key = h("span", { class: "key" });
      key.style.background = colours[curve.colour % colours.length];
      return h("span", { class: "readout-part" }, key, `${curve.label || curve.name} `,
        h("b", {}, this.format(point[1])));
    });
    replace(this.readout, h("span", { class: "muted" }, x === null ? "newest" : this.formatX(x)), parts);
  }

  highlight(x) {
    this.showReadout(x);
    if (!this.graph) return;
    if (x === null) this.graph.clearSelection();
    else {
      const row = this.graph.getRowForX(x);
      if (row !== null && row >= 0) this.graph.setSelection(row);
    }
  }

  inWords() {
    if (this.curves.length === 0) return "no records yet";
    return this.curves.filter((curve) => !curve.faint).map((curve) => {
      const [first, last] = [curve.points[0], curve.points[curve.points.length - 1]];
      return `${curve.label || curve.name} from ${this.format(first[1])} to ${this.format(last[1])}`;
    }).join("; ");
  }

  // Arrow keys move the visible range, + and - zoom, 0 shows everything.
  onKey(event) {
    if (!this.graph || event.ctrlKey || event.metaKey || event.altKey) return;
    // The next frame will draw the group's window.
    const [least, greatest] = this.group.window || this.graph.xAxisRange();
    const [from, to] = this.graph.xAxisExtremes();
    const width = greatest - least;
    const middle = (least + greatest) / 2;
    const to_window = {
      ArrowLeft: [least - width / 5, greatest - width / 5],
      ArrowRight: [least + width / 5, greatest + width / 5],
      "+": [middle - width / 4, middle + width / 4],
      "=": [middle - width / 4, middle + width / 4],
      "-": [middle - width, middle + width],
      0: null,
      Escape: null,
    };
    if (!(event.key in to_window)) return;
    event.preventDefault();
    const window = to_window[event.key];
    if (!window || window[1] - window[0] >= to - from) return this.group.zoom(null);
    const shift = Math.max(from - window[0], 0) + Math.min(to - window[1], 0);
    this.group.zoom([window[0] + shift, window[1] + shift]);
  }
}

// Charts that show the same range of the x axis, and the same x under the pointer.
export class ChartGroup {
  constructor(onZoom = () => {}) {
    this.charts = new Set();
    this.window = null;
    this.onZoom = onZoom;
    this.frame = 0;
  }

  add(chart) {
    this.charts.add(chart);
  }

  zoom(window) {
    this.window = window;
    // Each chart is drawn once per frame, however often the reader moves in between.
    if (!this.frame) this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const chart of this.charts) chart.follow();
    });
    this.onZoom(window);
  }

  highlight(x, row, source) {
    const value = x instanceof Date ? x.getTime() : x;
    for (const chart of this.charts) {
      if (chart === source) chart.showReadout(value);
      else chart.highlight(value);
    }
  }

  end() {
    cancelAnimationFrame(this.frame);
    for (const chart of [...this.charts]) chart.end();
  }
}

// Draws the values behind a smoothed curve. If several values share a column of pixels, it draws one bar from the
// least to the greatest. A line through all of them looks the same and takes most of a frame.
function drawFaint(event) {
  const { points, drawingContext: context, plotArea, color } = event;
  if (points.length < plotArea.w) return window.Dygraph.Plotters.linePlotter(event);
  context.save();
  context.fillStyle = color;
  context.globalAlpha = 0.5;
  let column = NaN;
  let [top, bottom] = [0, 0];
  let last = NaN;
  const fill = () => {
    if (Number.isFinite(column)) context.fillRect(column, top, 1, Math.max(1, bottom - top));
  };
  for (const { canvasx, canvasy } of points) {
    if (!Number.isFinite(canvasy)) continue;
    if (Math.floor(canvasx) !== column) {
      fill();
      column = Math.floor(canvasx);
      [top, bottom] = Number.isFinite(last) ? [Math.min(last, canvasy), Math.max(last, canvasy)] : [canvasy, canvasy];
    }
    top = Math.min(top, canvasy);
    bottom = Math.max(bottom, canvasy);
    last = canvasy;
  }
  fill();
  context.restore();
}

function nearest(points, x) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(points[high][0] - x) < Math.abs(points[low][0] - x) ? points[high] : points[low];
}
