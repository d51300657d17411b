// The figures, drawn with Observable Plot from the numbers in #data. Colours are the page's variables, so that light,
// dark and print need no drawing again. Each function gives an SVG of a width in pixels.
"use strict";

const METRICS = {
  ppl: { value: "ppl", delta: "rel_ppl", title: "PPL", change: "Δ PPL (%)", unit: " %", digits: 2 },
  bleu: { value: "bleu", delta: "d_bleu", title: "BLEU", change: "Δ BLEU", unit: "", digits: 1 },
};
const LOGGED = { loss: ["training loss (nats per subword)", "linear"], dev_ppl: ["dev perplexity (per subword)", "log"] };
const DASHES = [null, null, "6 3", "6 2 1.5 2", "1.5 2.5"]; // changes with the colours, 7 rows before a pair comes again
const LOOK = { fontSize: "12px", background: "transparent", color: "var(--ink)" };

// Numbers as the table writes them, with a true minus; toLocaleString would take most of the time of a drawing.
const FORMATS = {};
const format = (pattern, value) => value == null ? "—" : (FORMATS[pattern] ??= d3.format(pattern))(value);
const number = (value, digits) => format(`,.${digits}f`, value);
const signed = (value, digits) => format(`+,.${digits}f`, value);
const count = d3.format(",");
const change = (value) => value ? d3.format("+~r")(+value.toFixed(6)) : "0"; // a tick of a difference
const present = (...values) => values.filter((value) => value != null);

// A plot that screen readers take for one picture with a name, not for its marks; the tables have its numbers.
function image(options) {
  const svg = Plot.plot(options);
  svg.setAttribute("role", "img");
  svg.querySelectorAll("[aria-label]").forEach((part) => part.setAttribute("aria-hidden", "true"));
  return svg;
}

// Limits that hold the values and 0 with room; not the intervals: those of two seeds would hide everything.
function around(values) {
  const [low, high] = d3.extent(values);
  const room = 0.15 * (high - low) || 1;
  return [low - room, high + room];
}

// What a row's mark says when it is pointed at.
function describe(row, metric) {
  const { value, delta, title, unit, digits } = METRICS[metric];
  const percent = (number) => signed(number, 1) + unit;
  const range = (name, show) => row[`${name}_low`] == null ? "" : ` [${show(row[`${name}_low`])}, ${show(row[`${name}_high`])}]`;
  const lines = [row.label, `${title} ${number(row[value], digits)}${range(value, (x) => number(x, digits))}, ${row.n}/${row.seeds} seeds`];
  if (row[delta] != null) lines.push(`to base ${percent(row[delta])}${range(delta, percent)}`);
  if (row[`d_${metric}_p_holm`] != null) lines.push(`p = ${number(row[`d_${metric}_p_holm`], 3)} (Holm)`);
  if (row[`paper_${value}`] != null) lines.push(`the paper's ${number(row[`paper_${value}`], digits)}` + (row[`paper_${delta}`] == null ? "" : `, to base ${percent(row[`paper_${delta}`])}`));
  return lines.join("\n");
}

// Intervals cut at the limits of an axis, and the arrow heads where they are: [[row, place, head] …].
const clamp = (value, [low, high]) => Math.min(high, Math.max(low, value));
function cuts(rows, name, limits, heads) {
  return rows.filter((row) => row[`${name}_low`] != null).flatMap((row) => [
    ...(row[`${name}_low`] < limits[0] ? [{ row, at: limits[0], head: heads[0] }] : []),
    ...(row[`${name}_high`] > limits[1] ? [{ row, at: limits[1], head: heads[1] }] : []),
  ]);
}

// Every row's difference to base, in the table's order with a gap between blocks.
function forest(rows, metric, width) {
  const { value, delta, digits } = METRICS[metric];
  const domain = rows.flatMap((row, i) => i && row.block !== rows[i - 1].block ? [`\0${i}`, row.row] : [row.row]);
  const labels = new Map(rows.map((row) => [row.row, row.label]));
  const limits = around([0, ...present(...rows.flatMap((row) => [row[delta], row[`paper_${delta}`]]))]);
  const known = rows.filter((row) => row[`${delta}_low`] != null);
  const end = (which) => (row) => clamp(row[`${delta}_${which}`], limits);
  const base = rows.find((row) => row.row === "base");
  const at = (column, own) => (row) => row === base ? (row[own] == null ? null : 0) : row[column];
  const bases = base ? ` to base’s ${number(base[value], digits)}; the paper’s to ${number(base[`paper_${value}`], digits)}` : "";
  const against = METRICS[metric].change + bases;
  const longest = d3.max(rows, (row) => row.label.length) ?? 4;
  return image({
    width, height: 56 + 21 * domain.length, marginLeft: 14 + 6.6 * longest, marginBottom: 40, style: LOOK,
    x: { domain: limits, label: against, labelAnchor: "center", labelArrow: "none", ticks: Math.max(3, width / 90), tickFormat: change },
    y: { type: "point", domain, label: null, padding: 0.7 },
    ariaLabel: `${METRICS[metric].change} of ${rows.length} rows to base, ours and the paper's`,
    marks: [
      Plot.gridX({ stroke: "var(--rule)", strokeOpacity: 1 }),
      Plot.ruleX([0], { stroke: "var(--faint)" }),
      Plot.axisY({ tickSize: 0, tickFormat: (name) => labels.get(name) ?? "", fill: "currentColor" }),
      Plot.ruleY(known, { y: "row", x1: end("low"), x2: end("high"), stroke: "var(--ours)", strokeWidth: 2 }),
      Plot.text(cuts(rows, delta, limits, "◂▸"), { y: (cut) => cut.row.row, x: "at", text: "head", fill: "var(--ours)", fontSize: 13 }),
      Plot.dot(rows, { y: "row", x: at(`paper_${delta}`, `paper_${value}`), symbol: "diamond", r: 4.5, stroke: "var(--papers)", strokeWidth: 1.6 }),
      Plot.dot(rows, { y: "row", x: at(delta, value), r: 4.2, fill: "var(--ours)", stroke: "var(--page)", strokeWidth: 0.8 }),
      Plot.tip(rows, Plot.pointerY({ y: "row", x: (row) => at(delta, value)(row) ?? row[`paper_${delta}`] ?? 0, title: (row) => describe(row, metric), stroke: "var(--rule)" })),
    ],
  });
}

// The rows of a block that have another value of a setting than base, and base, by that value.
function varying(rows, base, block, name) {
  if (!base) return [];
  const others = rows.filter((row) => row.block === block && row[name] !== base[name]);
  return others.length ? [base, ...others].sort((a, b) => a[name] - b[name]) : [];
}

// A metric against a setting, evenly spaced: most settings are powers of two. Mode: "difference" to base, or "value".
function setting(points, name, metric, mode, width) {
  const names = METRICS[metric];
  const column = mode === "value" ? names.value : names.delta;
  const isBase = (row) => mode === "difference" && row.row === "base";
  const ours = (row) => isBase(row) ? (row[names.value] == null ? null : 0) : row[column];
  const papers = (row) => isBase(row) ? 0 : row[`paper_${column}`];
  const limits = around([...(mode === "value" ? [] : [0]), ...present(...points.flatMap((row) => [ours(row), papers(row)]))]);
  const known = points.filter((row) => row[`${column}_low`] != null && !isBase(row));
  const x = (row) => count(row[name]);
  const end = (which) => (row) => clamp(row[`${column}_${which}`], limits);
  const label = mode === "value" ? names.title : names.change;
  return image({
    width, height: 190, marginLeft: 46, marginBottom: 38, marginRight: 14, style: LOOK,
    x: { type: "point", domain: points.map(x), label: name, labelAnchor: "center", labelArrow: "none", padding: 0.3 },
    y: { domain: limits, label, labelArrow: "none", ticks: 5, tickFormat: mode === "value" ? undefined : change },
    ariaLabel: `${label} against ${name}, ours and the paper's`,
    marks: [
      Plot.gridY({ stroke: "var(--rule)", strokeOpacity: 1, ticks: 5 }),
      ...(mode === "value" ? [] : [Plot.ruleY([0], { stroke: "var(--faint)" })]),
      Plot.line(points, { x, y: papers, stroke: "var(--papers)", strokeDasharray: "4 3" }),
      Plot.dot(points, { x, y: papers, symbol: "diamond", r: 4.5, stroke: "var(--papers)", strokeWidth: 1.6 }),
      Plot.ruleX(known, { x, y1: end("low"), y2: end("high"), stroke: "var(--ours)", strokeWidth: 2 }),
      Plot.text(cuts(known, column, limits, "▾▴"), { x: (cut) => x(cut.row), y: "at", text: "head", fill: "var(--ours)", fontSize: 13 }),
      Plot.line(points, { x, y: ours, stroke: "var(--ours)" }),
      Plot.dot(points, { x, y: ours, r: 4.2, fill: "var(--ours)", stroke: "var(--page)", strokeWidth: 0.8 }),
      Plot.tip(points, Plot.pointerX({ x, y: (row) => ours(row) ?? papers(row), title: (row) => describe(row, metric), stroke: "var(--rule)" })),
    ],
  });
}

// Ticks of a logarithmic axis: 1, 2, 5, 10 … where there are enough of them.
function decimal(low, high) {
  const powers = d3.range(Math.floor(Math.log10(low)), Math.log10(high) + 1);
  const ticks = powers.flatMap((power) => [1, 2, 5].map((i) => i * 10 ** power)).filter((tick) => low <= tick && tick <= high);
  return ticks.length > 2 ? ticks : d3.ticks(low, high, 4);
}

const look = (i) => ({ stroke: `var(--series-${i && 1 + (i - 1) % 7})`, strokeDasharray: DASHES[i % DASHES.length] });

// How a number went in the rows of a block; the i-th row of the block has the i-th look, base the 0th.
function curve(found, index, column, width) {
  const [label, type] = LOGGED[column];
  const lines = found.map((one) => ({ ...one, points: one.points.map(([step, mean, low, high, n]) => ({ row: one.row, step, mean, low, high, n })) }));
  const all = lines.flatMap((one) => one.points);
  const title = ({ row, step, mean, low, high, n }) => `${row}, step ${count(step)}\n${number(mean, 3)}` + (n > 1 ? ` [${number(low, 3)}, ${number(high, 3)}], ${n} seeds` : ", one seed");
  const last = d3.max(all, (point) => point.step);
  const late = all.filter((point) => point.step >= last / 10); // what comes before would press the rest together
  const limits = [d3.min(late, (point) => point.low), d3.max(late, (point) => point.high)];
  const ticks = type === "log" ? decimal(...limits) : d3.ticks(...limits, 5);
  return image({
    width, height: 240, marginLeft: 46, marginBottom: 38, marginRight: 14, style: LOOK,
    x: { label: "updates", labelAnchor: "center", labelArrow: "none", ticks: width / 90, domain: [0, last] },
    y: { type, label, labelArrow: "none", ticks, tickFormat: count, domain: limits },
    ariaLabel: `${label} against updates: ${found.map((one) => one.row).join(", ")}`,
    marks: [
      Plot.gridY({ stroke: "var(--rule)", strokeOpacity: 1, ticks }),
      ...lines.map((one) => Plot.areaY(one.points.filter((point) => point.n > 1), { x: "step", y1: "low", y2: "high", fill: look(index(one.row)).stroke, fillOpacity: 0.15, clip: true })),
      ...lines.map((one) => Plot.lineY(one.points, { x: "step", y: "mean", ...look(index(one.row)), strokeWidth: 1.6, clip: true })),
      Plot.dot(late, Plot.pointer({ maxRadius: 200, x: "step", y: "mean", r: 3.5, fill: (point) => look(index(point.row)).stroke })),
      Plot.tip(late, Plot.pointer({ maxRadius: 200, x: "step", y: "mean", title, stroke: "var(--rule)" })),
    ],
  });
}
