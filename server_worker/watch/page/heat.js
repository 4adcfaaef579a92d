// Accuracy by class: one row per class, one column per round, darker is better.
import { fit, svg } from "./dom.js";
import { grouped, mean } from "./bars.js";
import { known, percent } from "./numbers.js";
import { extent } from "./scales.js";

const LEVELS = 8;
const NARROWEST = 3;
const MOST_CLASSES = 20;

/** names() of the classes; all(): show more than a screenful; many(are): whether there are more than that. */
export function heatKind({ label, names, all, many }) {
  return {
    label,
    height: (prepared) => prepared.classes.length * rowHeight(prepared) + 10,
    prepare(rows, width) {
      const measured = rows.filter((row) => row.classes.length);
      if (!measured.length) return null;
      const latest = measured.at(-1).classes;
      many(latest.length > MOST_CLASSES);
      const classes = chosenClasses(latest, all());
      const [least] = extent(measured.flatMap((row) => row.classes).filter(known));
      const low = Math.min(0.9, Math.floor(10 * least) / 10);
      const groups = grouped(measured, (width - 140) / NARROWEST);
      return {
        measured,
        classes,
        latest,
        low,
        groups,
        total: latest.length,
        left: Math.min(110, width * 0.26),
        right: 52,
        y: { domain: [0, 1], values: [], format: String },
      };
    },
    yAxis: (frame, prepared) =>
      prepared.classes.flatMap((index, place) => {
        const y = frame.top + (place + 0.5) * rowHeight(prepared) + 4;
        return [
          svg(
            "text",
            { class: "tick class-name", x: frame.left - 8, y, "text-anchor": "end" },
            fit(nameOf(names(), index), frame.left - 12),
          ),
          svg("text", { class: "end plain", x: frame.right + 6, y }, percent(prepared.latest[index], 0)),
        ];
      }),
    marks(frame, prepared) {
      const tall = rowHeight(prepared);
      const cells = Array.from({ length: LEVELS + 1 }, () => []);
      let end = frame.left;
      for (const group of prepared.groups) {
        // From the measured round before: evaluate_every may leave some out.
        const x = end;
        end = frame.x(group.last) + frame.column / 2;
        const wide = Math.max(end - x, 1);
        prepared.classes.forEach((index, place) => {
          const share = mean(group.rows.map((row) => row.classes[index]));
          const top = frame.top + place * tall;
          cells[level(share, prepared.low)].push(
            `M${x.toFixed(2)},${top + 1}h${wide.toFixed(2)}v${tall - 2}h${(-wide).toFixed(2)}z`,
          );
        });
      }
      return cells.map((paths, index) =>
        svg("path", { class: index ? `heat heat-${index}` : "heat heat-unknown", d: paths.join("") }),
      );
    },
    tips: (row, { classes }) =>
      row.classes.length
        ? classes
            .slice(0, 12)
            .map((index) => ({
              mark: "none",
              name: nameOf(names(), index),
              value: percent(row.classes[index]),
            }))
        : ["not evaluated in this round"],
    legend: ({ low }) => [
      { css: "heat-1", name: percent(low, 0), shape: "box" },
      { css: `heat-${LEVELS}`, name: "100 %", shape: "box" },
    ],
    columns: ({ latest }) =>
      latest.map((_, index) => ({
        name: nameOf(names(), index),
        text: (row) => percent(row.classes[index]),
      })),
    said: ({ classes, total }) =>
      classes.length < total ? `the ${classes.length} lowest of ${total} classes` : "",
  };
}

function chosenClasses(latest, all) {
  const indices = latest.map((_, index) => index);
  if (all || latest.length <= MOST_CLASSES) return indices;
  return indices.sort((a, b) => (latest[a] ?? 2) - (latest[b] ?? 2)).slice(0, MOST_CLASSES);
}

function rowHeight({ classes }) {
  return classes.length <= 12 ? 18 : 15;
}

function level(share, low) {
  if (!known(share)) return 0;
  return 1 + Math.min(LEVELS - 1, Math.floor(((share - low) / (1 - low)) * LEVELS));
}

function nameOf(names, index) {
  return names[index] ?? `class ${index}`;
}
