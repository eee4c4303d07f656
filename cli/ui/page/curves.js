// Records of a run as curves over step, tokens or time. nsad thins the records out so that peaks stay.
import { getLines, runPath } from "/api.js";
import { count, dateTime } from "/format.js";

const POINTS = 1600; // for a chart as wide as the page

export const COARSE_AGAIN = 1000; // milliseconds until finer records are requested

// Returns {records of these metrics, indexed}. `range` is [first, last] step, or null for all. `points` counts points
// per metric. If `indexed` is set, the records are a sample. It is the share of the file that nsad has read, from 0 to
// 1.
export async function fetchRecords(run, kind, metrics, range = null, points = POINTS) {
  const query = new URLSearchParams({ kind, metrics: metrics.join(","), points: points * metrics.length, coarse: true });
  if (range) {
    query.set("first_step", Math.max(0, Math.floor(range[0])));
    query.set("last_step", Math.ceil(range[1]));
  }
  const lines = await getLines(runPath(run, `/metrics?${query}`));
  return { records: lines.filter((line) => line.kind !== "end"),
    indexed: lines.filter((line) => line.coarse === true).map((line) => line.indexed)[0] };
}

export function xOf(record, axis) {
  return axis === "time" ? Date.parse(record.time) : record[axis];
}

export function pointsOf(records, metric, axis) {
  return records.filter((record) => Number.isFinite(record[metric]))
    .map((record) => [xOf(record, axis), record[metric]]);
}

export function formatX(axis) {
  if (axis === "time") return (value) => dateTime(value);
  return (value) => (axis === "tokens" ? `${count(value)} tokens` : `step ${value}`);
}

export function tickX(axis) {
  if (axis === "time") return (value) => new Date(value).toLocaleTimeString();
  return (value) => (axis === "step" && Number.isInteger(value) && value < 1e5 ? String(value) : count(value));
}

// Returns the exponential moving average, corrected for its start. `weight` is from 0 (none) to 0.99.
export function smooth(points, weight) {
  if (weight <= 0) return points;
  let sum = 0;
  let scale = 0;
  return points.map(([x, y]) => {
    sum = sum * weight + y * (1 - weight);
    scale = scale * weight + (1 - weight);
    return [x, sum / scale];
  });
}

// Returns the curves to draw. With smoothing, the values themselves stay behind the curve and are faint.
export function withSmoothing(curve, weight) {
  if (weight <= 0 || curve.points.length < 3) return [curve];
  return [{ ...curve, name: `${curve.name} (values)`, faint: true },
    { ...curve, points: smooth(curve.points, weight), values: curve.points }];
}

// Returns marks for the run's events. The records map steps to this axis.
export function marksOf(detail, records, axis) {
  const place = (step, time) => {
    if (axis === "step") return step;
    if (axis === "time") return time ? Date.parse(time) : NaN;
    return between(records, step);
  };
  const marks = [];
  for (const checkpoint of [...detail.checkpoints].reverse())
    marks.push({ kind: "checkpoint", x: place(checkpoint.step, checkpoint.written_at),
      text: `checkpoint of step ${checkpoint.step}` });
  detail.attempts.forEach((attempt, index) => {
    if (index === 0) return;
    const kind = detail.attempts[index - 1].failure_class ? "restart" : "resume";
    marks.push({ kind, x: place(attempt.first_step, attempt.started_at), label: `attempt ${attempt.attempt}`,
      text: `attempt ${attempt.attempt} continues after step ${attempt.first_step}` });
  });
  for (const hang of detail.hangs || [])
    marks.push({ kind: "hang", x: place(hang.step, hang.found_at), label: `hang, rank ${hang.rank}`,
      text: `rank ${hang.rank} ${hang.kind} at step ${hang.step}` });
  return marks.filter((mark) => Number.isFinite(mark.x));
}

// Interpolates the tokens at a step between the two records around it.
function between(records, step) {
  let before = null;
  for (const record of records) {
    if (record.step === step) return record.tokens;
    if (record.step > step) {
      if (!before) return record.tokens;
      return before.tokens + ((record.tokens - before.tokens) * (step - before.step)) / (record.step - before.step);
    }
    before = record;
  }
  return before ? before.tokens : NaN;
}
