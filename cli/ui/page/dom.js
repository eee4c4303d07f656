// Makes elements without a framework. Text always becomes text nodes, so no text of a rank becomes markup.

// h("a", {href: "#/runs", onclick: f, class: "x"}, "text", child, [children], null)
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...children.flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(element, attributes);
  element.append(...children.flat(Infinity));
  return element;
}

function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false));
}

// Offers content that this page made as a download.
export function download(name, content) {
  const url = URL.createObjectURL(content);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
