// Dark or light: follows the system until the reader chooses. The browser stores the choice.

const KEY = "nsa-theme";
const listeners = new Set();
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : systemIsDark.matches;
}

// Charts are redrawn in the new colours.
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function initialiseTheme() {
  const tell = () => listeners.forEach((listener) => listener());
  const chosen = localStorage.getItem(KEY);
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  systemIsDark.addEventListener("change", tell);
  document.getElementById("theme").addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem(KEY, next);
    tell();
  });
}

// Returns a colour of style.css, for drawing on a canvas.
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Colour-blind people can distinguish these colours. Their order is that of style.css.
export function seriesColours() {
  return Array.from({ length: 8 }, (_, index) => colour(`series-${index + 1}`));
}
