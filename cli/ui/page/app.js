// The page: chooses the view that the address names, and holds what all views share.
//
// A view is a module with `show(main, parts, query)`. It draws into `main`, and returns a function that ends what it
// began (timers, charts).
import { replace, h } from "/dom.js";
import { errorBox } from "/parts.js";
import { loadSettings } from "/settings.js";
import { initialiseTheme } from "/theme.js";
import * as compareView from "/view_compare.js";
import * as nodeView from "/view_node.js";
import * as runView from "/view_run.js";
import * as runsView from "/view_runs.js";

const VIEWS = { runs: runsView, run: runView, compare: compareView, node: nodeView };

let end = () => {};

function show() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter((part) => part !== "").map(decodeURIComponent);
  const name = parts.shift() || "runs";
  end();
  end = () => {};
  const main = document.getElementById("main");
  for (const link of document.querySelectorAll("nav a[data-view]")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const view = VIEWS[name];
  if (!view) {
    replace(main, errorBox(new Error(`There is no view named ${name}.`)),
      h("a", { href: "#/runs" }, "Show the runs"));
    return;
  }
  replace(main);
  end = view.show(main, parts, new URLSearchParams(query)) || end;
}

window.addEventListener("hashchange", () => {
  show();
  document.getElementById("main").focus({ preventScroll: true });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash names the view
  document.getElementById("main").focus();
});
initialiseTheme();
loadSettings().then(show, (error) => replace(document.getElementById("main"), errorBox(error)));
