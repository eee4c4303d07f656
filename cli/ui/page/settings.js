// The actions that nsactl allows this page, and the words of nsad's lists: phases of a rank in the order of a step,
// and states of a run. They are loaded once, before the first view.
import { getJson } from "/api.js";

export const settings = { actions: false, phases: [], run_states: [] };

export async function loadSettings() {
  Object.assign(settings, await getJson("/ui/settings"));
}
