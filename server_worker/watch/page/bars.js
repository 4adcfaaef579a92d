// Stacked bars by round. Where rounds are too narrow for bars, a bar stands for the mean of several rounds.
import { svg } from "./dom.js";
import { known } from "./numbers.js";
import { extent } from "./scales.js";

const NARROWEST = 3;
const WIDEST = 48;

/** Neighbouring rows in at most `most` groups: [{first, last, rows}]. */
export function grouped(rows, most) {
  const size = Math.max(1, Math.ceil(rows.length / Math.max(1, most)));
  const groups = [];
  for (let begin = 0; begin < rows.length; begin += size) {
    const part = rows.slice(begin, begin + size);
    groups.push({ first: part[0].round, last: part.at(-1).round, rows: part });
  }
  return groups;
}

export function mean(values) {
  const found = values.filter(known);
  return found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : null;
}

/** parts(rows) → [{name, css, value(row), format}], from the bottom up; unit(top) → {size, name} for the axis. */
export function barKind({ label, parts, tick, whole, unit = () => ({ size: 1 }), tall = 170 }) {
  return {
    label,
    height: () => tall,
    prepare(rows, width) {
      const used = parts(rows).filter((part) => rows.some((row) => part.value(row) > 0));
      if (!used.length) return null;
      const stacks = grouped(rows, (width - 60) / NARROWEST).map((group) => ({
        ...group,
        values: used.map((part) => mean(group.rows.map((row) => part.value(row) ?? 0)) ?? 0),
      }));
      const [, top] = extent([
        1e-9,
        ...stacks.map((stack) => stack.values.reduce((sum, value) => sum + value, 0)),
      ]);
      const units = unit(top);
      const format = (value, digits) => tick(value, digits, units);
      return { parts: used, stacks, y: { domain: [0, top * 1.04], whole, unit: units.size, format } };
    },
    marks: (frame, { parts: used, stacks }) =>
      used.map((part, index) =>
        svg("path", {
          class: `stack ${part.css}`,
          d: stacks.map((stack) => bar(frame, stack, index)).join(""),
        }),
      ),
    tips: (row, { parts: used }) =>
      used
        .toReversed()
        .map((part) => ({ mark: part.css, name: part.name, value: part.format(part.value(row)) })),
    legend: ({ parts: used }) => used.map((part) => ({ css: part.css, name: part.name, shape: "box" })),
    columns: ({ parts: used }) =>
      used.map((part) => ({ name: part.name, text: (row) => part.format(part.value(row)) })),
  };
}

function bar(frame, stack, index) {
  const below = stack.values.slice(0, index).reduce((sum, value) => sum + value, 0);
  const [low, high] = [frame.y(below), frame.y(below + stack.values[index])];
  if (low - high < 0.05) return "";
  const room = frame.column * (stack.last - stack.first + 1);
  const middle = (frame.x(stack.first) + frame.x(stack.last)) / 2;
  const wide = Math.min(WIDEST, room - (room < 5 ? 0 : Math.min(3, room * 0.2)));
  const left = middle - wide / 2;
  return `M${left.toFixed(2)},${low.toFixed(2)}h${wide.toFixed(2)}V${high.toFixed(2)}h${(-wide).toFixed(2)}z`;
}
