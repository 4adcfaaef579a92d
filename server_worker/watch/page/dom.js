// All text enters the page here, as text: sites and users write names and details.
const SVG = "http://www.w3.org/2000/svg";

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function make(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

/** Changes the page only where the text differs: no flicker, and selected text stays selected. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function set(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const pen = document.createElement("canvas").getContext("2d");

/** Width in pixels of a chart's label. */
export function widthOf(text, bold = false) {
  pen.font = `${bold ? 600 : 400} ${FONT}`;
  return Math.ceil(pen.measureText(text).width);
}

/** As much of it as fits, with an ellipsis. */
export function fit(text, width, bold = false) {
  const brief = text.length > 80 ? `${text.slice(0, 80)}…` : text;
  if (widthOf(brief, bold) <= width) return brief;
  let end = brief.length - 1;
  while (end > 1 && widthOf(`${brief.slice(0, end)}…`, bold) > width) end -= 1;
  return `${brief.slice(0, end)}…`;
}

export function table(caption, head, rows) {
  const cells = (row) =>
    row.map((cell, column) =>
      make("td", { "data-label": head[column] }, cell instanceof Node ? cell : make("bdi", {}, String(cell))),
    );
  return make(
    "table",
    {},
    make("caption", { class: "unseen" }, caption),
    make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row)))),
  );
}
