// Dark or light: as the system says, until the reader chooses. The choice is kept in this browser.

const KEY = "nsa-theme";
const listeners = new Set();
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : systemIsDark.matches;
}

// Charts are drawn anew in other colours.
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

// A colour of style.css, for what is drawn on a canvas.
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Told apart by people who see colours differently; the order is that of style.css.
export function seriesColours() {
  return Array.from({ length: 8 }, (_, index) => colour(`series-${index + 1}`));
}
