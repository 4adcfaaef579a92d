// The panel around a chart: title, legend, and the values as a table.
import { make, put, svg, table } from "./dom.js";
import { Chart } from "./chart.js";
import { glyph } from "./strip.js";
import { inRange } from "./view.js";

const MOST_TABLE_ROWS = 200;

export class Panel {
  constructor({
    id,
    title,
    hint,
    size = "third",
    kind,
    rows = (run) => run.rounds,
    controls = [],
    wordsForConstants = false,
  }) {
    Object.assign(this, { kind, rowsOf: rows, wordsForConstants });
    this.host = make("div", {});
    this.legend = make("ul", { class: "legend" });
    this.said = make("p", { class: "said quiet" });
    this.tableHost = make("div", {
      class: "table-host",
      tabindex: "0",
      role: "region",
      "aria-label": `${title}, as a table`,
      hidden: true,
    });
    this.toggle = make("button", { class: "plain small", type: "button", "aria-pressed": "false" }, "table");
    this.toggle.addEventListener("click", () => this.switch());
    const head = make(
      "div",
      { class: "panel-head" },
      make("h2", { id: `${id}-title` }, title),
      make("div", { class: "controls" }, ...controls, this.toggle),
    );
    this.element = make(
      "section",
      { id, class: `panel ${size}`, "aria-labelledby": `${id}-title`, hidden: true },
      head,
      hint && make("p", { class: "hint quiet" }, hint),
      this.legend,
      this.host,
      this.tableHost,
      this.said,
    );
    this.chart = new Chart(this.host, kind);
  }

  show(run) {
    this.rows = inRange(this.rowsOf(run));
    const prepared = this.rows.length ? this.kind.prepare(this.rows, 600) : null;
    // Once shown it stays, so that nothing jumps, unless there are no rounds any more.
    if (prepared) this.element.hidden = false;
    else if (!this.rows.length) this.element.hidden = true;
    if (!prepared) return;
    const constants = this.wordsForConstants ? constantWords(prepared.series) : "";
    this.element.classList.toggle("in-words", Boolean(constants));
    this.chart.show(this.rows);
    this.drawLegend(prepared);
    put(this.said, constants || this.kind.said?.(prepared) || "");
    if (!this.tableHost.hidden) this.drawTable();
  }

  drawLegend(prepared) {
    const entries = this.kind.legend?.(prepared) ?? [];
    const key = JSON.stringify(entries);
    if (key === this.legendKey) return;
    this.legendKey = key;
    this.legend.replaceChildren(
      ...entries.map((entry) => make("li", { title: entry.help }, sample(entry), make("bdi", {}, entry.name))),
    );
  }

  switch() {
    const open = this.tableHost.hidden;
    this.tableHost.hidden = !open;
    this.host.hidden = open;
    this.legend.hidden = open;
    this.toggle.setAttribute("aria-pressed", String(open));
    put(this.toggle, open ? "chart" : "table");
    if (open) this.drawTable();
    else this.chart.draw();
  }

  drawTable() {
    const prepared = this.rows.length ? this.kind.prepare(this.rows, 600) : null;
    if (!prepared) return;
    const columns = this.kind.columns(prepared);
    const rows = this.rows.slice(-MOST_TABLE_ROWS).reverse();
    this.tableHost.replaceChildren(
      table(
        this.kind.label,
        ["round", ...columns.map((column) => column.name)],
        rows.map((row) => [row.round, ...columns.map((column) => column.text(row))]),
      ),
    );
  }
}

/** "confident 60 % in every round", if no series changes; a curve would say no more. */
function constantWords(series) {
  const constant = ({ points }) => points.length > 2 && points.every(([, value]) => value === points[0][1]);
  if (!series.every(constant)) return "";
  return `${series.map((one) => `${one.name} ${one.format(one.points[0][1])}`).join(", ")} in every round`;
}

function sample(entry) {
  const inside = entry.glyph
    ? svg("path", { class: `mark ${entry.css}`, d: glyph(entry.glyph, 9, 7, 4) })
    : entry.shape === "box"
      ? svg("rect", { class: `stack heat ${entry.css}`, x: 3, y: 2, width: 12, height: 10, rx: 2 })
      : svg("path", { class: `${entry.css === "threshold" ? "" : "curve "}${entry.css}`, d: "M0,7H18" });
  return svg(
    "svg",
    { class: "sample", width: 18, height: 14, viewBox: "0 0 18 14", "aria-hidden": "true" },
    inside,
  );
}
