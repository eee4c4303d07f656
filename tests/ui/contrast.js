// WCAG AA of what is seen: texts have 4.5 against what is behind them (large ones 3), drawn things 3. axe-core leaves
// texts of one letter, symbols and whatever is drawn undecided. Gives {what: contrast} of what has less.
(() => {
  const numbers = (text) => text.match(/[\d.]+/g).map(Number);
  const parse = (text) => { const [r, g, b, a = 1] = numbers(text); return { r, g, b, a }; };
  const mix = (top, below) => Object.fromEntries(["r", "g", "b"].map((c) => [c, top[c] * top.a + below[c] * (1 - top.a)]));
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = ({ r, g, b }) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const contrast = (ink, below) => {
    const [least, greatest] = [light(mix(ink, below)), light(below)].sort((a, b) => a - b);
    return (greatest + 0.05) / (least + 0.05);
  };
  const behind = (element) => {
    const around = [];
    for (let one = element; one; one = one.parentElement) around.unshift(parse(getComputedStyle(one).backgroundColor));
    return around.reduce((below, top) => mix(top, below), { r: 255, g: 255, b: 255 });
  };
  const found = {};
  const judge = (what, ink, below, least) => {
    const value = contrast(ink, below);
    if (value < least) found[what] = value.toFixed(2);
  };
  const isSeen = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const called = (element) => `${element.tagName.toLowerCase()}.${element.className.baseVal ?? element.className}`;

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement;
    if (!node.data.trim() || !isSeen(element)) continue;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (style.fontWeight >= 700 && size >= 18.66);
    judge(`${called(element)}: ${node.data.trim().slice(0, 30)}`,
      parse(element instanceof SVGElement ? style.fill : style.color), behind(element), isLarge ? 3 : 4.5);
  }
  for (const element of document.querySelectorAll("svg rect, svg polyline, svg path")) {
    const style = getComputedStyle(element);
    const ink = style.fill !== "none" ? style.fill : style.stroke;
    if (ink !== "none" && isSeen(element)) judge(called(element), parse(ink), behind(element), 3);
  }
  // Drawn on canvases: curves, marks, and what has the focus.
  const probe = document.body.appendChild(document.createElement("i"));
  const paper = parse(getComputedStyle(document.body).backgroundColor);
  for (const name of [...Array.from({ length: 8 }, (_, index) => `series-${index + 1}`), "bad", "warn", "accent", "muted-line"]) {
    probe.style.color = `var(--${name})`;
    judge(`--${name}`, parse(getComputedStyle(probe).color), paper, 3);
  }
  probe.remove();
  return JSON.stringify(found);
})()
