// The actions that nsactl allows this page, and the words of nsad's lists. These are a rank's phases in the order of a
// step, and a run's states. They are loaded once, before the first view.
import { getJson } from "/api.js";

export const settings = { actions: false, phases: [], run_states: [] };

export async function loadSettings() {
  Object.assign(settings, await getJson("/ui/settings"));
}
