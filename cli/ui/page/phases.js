// Phases of a rank (common/progress/phase.h), in the order of a step.
export const PHASES = ["start-up", "restore", "data", "forward", "backward", "all-reduce", "all-gather-state", "optimizer",
  "all-gather-weights", "results", "checkpoint", "evaluation", "all-reduce-evaluation", "shut-down"];

// The class of style.css that has the phase's colour.
export function phaseClass(phase) {
  return PHASES.includes(phase) ? `phase phase-${phase}` : "phase phase-none";
}
