// Line charts: one value per round in each line.
import { svg } from "./dom.js";
import { brief, count, known, percent } from "./numbers.js";
import { logRoomFor, roomFor } from "./scales.js";

const MOST_DOTS = 60;
const DENSE = 150;

// By unit: how the axis is marked, and how much room is left around the values.
const AXES = {
  share: { format: percent, unit: 0.01, room: { ceiling: 1, least: 0.005 } },
  samples: { format: count, whole: true, room: { least: 1 } },
};

/**
 * series: [{name, css, value(row), format, short?, help?}] or a function that returns them;
 * levels() → [{name, short, value, css}] drawn across;
 * log: a logarithmic axis, on which values that are not positive lie at the bottom.
 */
export function lineKind({ label, series, levels = () => [], unit, log = false, tall = 190 }) {
  const { format = brief, room = {}, ...axis } = AXES[unit] ?? {};
  return {
    label,
    height: () => tall,
    prepare(rows) {
      const drawn = (typeof series === "function" ? series() : series)
        .map((one) => ({ ...one, points: pointsOf(rows, one.value) }))
        .filter((one) => one.points.length);
      if (!drawn.length) return null;
      const across = levels().filter((level) => known(level.value));
      const values = [
        ...drawn.flatMap((one) => one.points.map(([, value]) => value)),
        ...across.map((level) => level.value),
      ];
      const positive = values.filter((value) => value > 0);
      const domain = log ? logRoomFor(positive.length ? positive : [1]) : roomFor(values, room);
      return { series: drawn, levels: across, y: { ...axis, domain, log, format } };
    },
    marks: (frame, { series: drawn, levels: across }) => [
      ...across.map((level) => {
        const y = frame.y(level.value);
        return svg("line", { class: `level ${level.css}`, x1: frame.left, x2: frame.right, y1: y, y2: y });
      }),
      // The first on top; a mean above its values.
      ...drawn
        .toSorted((a, b) => Boolean(a.plain) - Boolean(b.plain) || drawn.indexOf(b) - drawn.indexOf(a))
        .flatMap((one) => curve(frame, one, log)),
    ],
    ends: ({ series: drawn, levels: across }) => [
      ...drawn
        .map((one) => ({
          value: one.points.at(-1)[1],
          text: `${one.short ?? ""} ${one.format(one.points.at(-1)[1])}`.trim(),
          figure: one.format(one.points.at(-1)[1]),
          css: one.css,
        }))
        .filter((end) => !log || end.value > 0),
      ...across.map((level) => ({ value: level.value, text: level.short, css: level.css })),
    ],
    tips: (row, { series: drawn, levels: across }) => [
      ...drawn.map((one) => ({ mark: one.css, name: one.name, value: one.format(one.value(row)) })),
      ...across.map((level) => ({ mark: level.css, name: level.name, value: level.text })),
    ],
    legend: (prepared) => [
      ...prepared.series.map((one) => ({ css: one.css, name: one.name, help: one.help })),
      ...prepared.levels.map((level) => ({ css: level.css, name: level.name })),
    ],
    columns: (prepared) =>
      prepared.series.map((one) => ({ name: one.name, text: (row) => one.format(one.value(row)) })),
  };
}

function pointsOf(rows, value) {
  return rows.map((row) => [row.round, value(row)]).filter(([, found]) => known(found));
}

function curve(frame, one, log) {
  const above = log ? one.points.filter(([, value]) => value > 0) : one.points;
  const floor = log ? one.points.filter(([, value]) => value <= 0) : [];
  const place = ([round, value]) => `${frame.x(round).toFixed(1)},${frame.y(value).toFixed(1)}`;
  const parts = [
    svg("path", {
      class: `curve ${one.css}${above.length > DENSE ? " dense" : ""}`,
      d: above.length > 1 ? `M${above.map(place).join("L")}` : "",
      "data-points": above.length,
    }),
  ];
  if (above.length <= MOST_DOTS && !one.plain) {
    parts.push(
      svg("path", { class: `dots ${one.css}`, d: above.map((point) => `M${place(point)}h0`).join("") }),
    );
  }
  if (floor.length) {
    const down = floor
      .map(([round]) => `M${(frame.x(round) - 3).toFixed(1)},${frame.bottom - 6}h6l-3,5z`)
      .join("");
    parts.push(svg("path", { class: `floor ${one.css}`, d: down }));
  }
  return parts;
}
