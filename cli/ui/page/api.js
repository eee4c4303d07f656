// Requests nsad's answers through nsactl. Every failure is an Error whose message says what a person can do.

export async function getJson(path) {
  return (await ask(path)).json();
}

// Returns the records of JSON lines. The last line ("kind": "end") holds their number.
export async function getLines(path) {
  const text = await (await ask(path)).text();
  return text.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line));
}

export async function post(path) {
  return (await ask(path, { method: "POST" })).json();
}

export function runPath(run, rest = "") {
  return `/v1/runs/${encodeURIComponent(run)}${rest}`;
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin" });
  } catch {
    throw new Error("nsactl ui does not answer any more. Start it again, and open the URL that it prints.");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  const what = said.what || `the answer has status ${response.status}`;
  throw new Error(said.next ? `${what}. Next: ${said.next}` : what);
}

// Calls `work` at once and then every `interval` ms while the tab is visible, one call at a time. The function that it
// returns stops this. `failed` gets null after a success.
export function poll(interval, work, failed) {
  let timer = 0;
  let stopped = false;
  const turn = async () => {
    if (!document.hidden) {
      try {
        await work();
        if (!stopped) failed(null);
      } catch (error) {
        if (!stopped) failed(error);
      }
    }
    if (!stopped) timer = setTimeout(turn, interval);
  };
  const seen = () => {
    if (document.hidden || stopped) return;
    clearTimeout(timer);
    turn();
  };
  document.addEventListener("visibilitychange", seen);
  turn();
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  };
}
