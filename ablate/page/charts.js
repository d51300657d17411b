// The figures, drawn with Observable Plot from the numbers in #data. Colours are the page's variables, so that light,
// dark and print need no drawing again. Each function gives an SVG of a width in pixels.
"use strict";

const METRICS = {
  ppl: { value: "ppl", delta: "rel_ppl", title: "PPL", change: "Δ PPL (%)", unit: "\u00a0%", digits: 2 },
  bleu: { value: "bleu", delta: "d_bleu", title: "BLEU", change: "Δ BLEU", unit: "", digits: 1 },
};
const LOGGED = { loss: ["training loss (nats per subword)", "linear"], dev_ppl: ["dev perplexity (per subword)", "log"] };
const DASHES = [null, null, "6 3", "6 2 1.5 2", "1.5 2.5"]; // changes with the colours, 7 rows before a pair comes again
const LOOK = { fontSize: "12px", background: "transparent", color: "var(--ink)" };
const LETTER = 6.6; // pixels, on average
const ACROSS = { labelAnchor: "center", labelArrow: "none" };
const GRID = { stroke: "var(--rule)", strokeOpacity: 1 };
const ZERO = { stroke: "var(--faint)" };
const OURS = { r: 4.2, fill: "var(--ours)", stroke: "var(--page)", strokeWidth: 0.8 };
const INTERVAL = { stroke: "var(--ours)", strokeWidth: 2 };
const HEAD = { text: "head", fill: "var(--ours)", fontSize: 13 };
const PAPERS = { symbol: "diamond", r: 4.5, stroke: "var(--papers)", strokeWidth: 1.6 };
const tip = (width) => ({ stroke: "var(--rule)", lineWidth: width < 500 ? 12 : 20 }); // narrow enough to fit beside a mark

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

// Which column a figure shows, and a row's place by it, ours and the paper's. Mode "difference": to base, whose own is 0.
function placing(metric, mode) {
  const { value, delta } = METRICS[metric];
  const column = mode === "value" ? value : delta;
  const isBase = (row) => mode === "difference" && row.row === "base";
  const place = (whose) => (row) => isBase(row) && row[whose + value] != null ? 0 : row[whose + column];
  return { column, ours: place(""), papers: place("paper_") };
}

// What a row's mark says when it is pointed at.
function describe(row, metric) {
  const { value, delta, title, unit, digits } = METRICS[metric];
  const plain = (x) => number(x, digits);
  const percent = (x) => signed(x, 1) + unit;
  const range = (name, show) => row[`${name}_low`] == null ? "" : ` [${show(row[`${name}_low`])},\u00a0${show(row[`${name}_high`])}]`;
  const change = (name) => row[name] == null ? "" : `, to base ${percent(row[name])}${range(name, percent)}`;
  const p = row[`d_${metric}_p_holm`];
  return [
    row.label,
    `${title} ${plain(row[value])}${range(value, plain)}, ${row.n}/${row.seeds}\u00a0seeds`,
    ...(row[delta] == null ? [] : [change(delta).slice(2)]),
    ...(p == null ? [] : [`p = ${number(p, 3)} (Holm)`]),
    ...(row[`paper_${value}`] == null ? [] : [`the paper's ${plain(row[`paper_${value}`])}${change(`paper_${delta}`)}`]),
  ].join("\n");
}

// A row's interval cut at the limits of an axis, and the arrow heads where it is cut.
const clamp = (column, limits) => (row) => Math.min(limits[1], Math.max(limits[0], row[column]));
function cuts(rows, column, limits, [first, last]) {
  const below = rows.filter((row) => row[`${column}_low`] < limits[0]).map((row) => ({ row, at: limits[0], head: first }));
  const above = rows.filter((row) => row[`${column}_high`] > limits[1]).map((row) => ({ row, at: limits[1], head: last }));
  return [...below, ...above];
}

// Every row's difference to base, in the table's order with a gap between blocks.
function forest(rows, metric, width) {
  const { value, change: label, digits } = METRICS[metric];
  const { column, ours, papers } = placing(metric, "difference");
  const domain = rows.flatMap((row, i) => i && row.block !== rows[i - 1].block ? [`\0${i}`, row.row] : [row.row]);
  const labels = new Map(rows.map((row) => [row.row, row.label]));
  const limits = around([0, ...present(...rows.map(ours), ...rows.map(papers))]);
  const known = rows.filter((row) => row[`${column}_low`] != null);
  const base = rows.find((row) => row.row === "base");
  const bases = ["", "paper_"].map((whose) => number(base?.[whose + value], digits));
  const longest = Math.min(d3.max(rows, (row) => row.label.length) ?? 4, Math.floor(0.36 * width / LETTER));
  const fit = (label = "") => label.length > longest ? `${label.slice(0, longest - 1)}…` : label;
  return image({
    width, height: 56 + 21 * domain.length, marginLeft: 14 + LETTER * longest, marginBottom: 40, style: LOOK,
    x: {
      ...ACROSS, domain: limits, ticks: Math.max(3, width / 90), tickFormat: change,
      label: `${label} to base’s ${bases[0]}; the paper’s to ${bases[1]}`,
    },
    y: { type: "point", domain, label: null, padding: 0.7 },
    ariaLabel: `${label} of ${rows.length} rows to base, ours and the paper's`,
    marks: [
      Plot.gridX(GRID),
      Plot.ruleX([0], ZERO),
      Plot.axisY({ tickSize: 0, tickFormat: (name) => fit(labels.get(name)), fill: "currentColor" }),
      Plot.ruleY(known, { y: "row", x1: clamp(`${column}_low`, limits), x2: clamp(`${column}_high`, limits), ...INTERVAL }),
      Plot.text(cuts(known, column, limits, "◂▸"), { y: (cut) => cut.row.row, x: "at", ...HEAD }),
      Plot.dot(rows, { y: "row", x: papers, ...PAPERS }),
      Plot.dot(rows, { y: "row", x: ours, ...OURS }),
      Plot.tip(rows, Plot.pointerY({ y: "row", x: (row) => ours(row) ?? papers(row) ?? 0, title: (row) => describe(row, metric), ...tip(width) })),
    ],
  });
}

// The rows of a block that have another value of a setting than base, and base, by that value.
function varying(rows, base, block, name) {
  if (!base) return [];
  const others = rows.filter((row) => row.block === block && row[name] !== base[name]);
  return others.length ? [base, ...others].sort((a, b) => a[name] - b[name]) : [];
}

// A metric against a setting, evenly spaced: most settings are powers of two.
function setting(points, name, metric, mode, width) {
  const { column, ours, papers } = placing(metric, mode);
  const differs = mode === "difference";
  const limits = around([...(differs ? [0] : []), ...present(...points.map(ours), ...points.map(papers))]);
  const known = points.filter((row) => row[`${column}_low`] != null);
  const x = (row) => count(row[name]);
  const label = differs ? METRICS[metric].change : METRICS[metric].title;
  return image({
    width, height: 190, marginLeft: 46, marginBottom: 38, marginRight: 14, style: LOOK,
    x: { ...ACROSS, type: "point", domain: points.map(x), label: name, padding: 0.3 },
    y: { domain: limits, label, labelArrow: "none", ticks: 5, tickFormat: differs ? change : undefined },
    ariaLabel: `${label} against ${name}, ours and the paper's`,
    marks: [
      Plot.gridY({ ...GRID, ticks: 5 }),
      ...(differs ? [Plot.ruleY([0], ZERO)] : []),
      Plot.line(points, { x, y: papers, stroke: "var(--papers)", strokeDasharray: "4 3" }),
      Plot.dot(points, { x, y: papers, ...PAPERS }),
      Plot.ruleX(known, { x, y1: clamp(`${column}_low`, limits), y2: clamp(`${column}_high`, limits), ...INTERVAL }),
      Plot.text(cuts(known, column, limits, "▾▴"), { x: (cut) => x(cut.row), y: "at", ...HEAD }),
      Plot.line(points, { x, y: ours, stroke: "var(--ours)" }),
      Plot.dot(points, { x, y: ours, ...OURS }),
      Plot.tip(points, Plot.pointerX({ x, y: (row) => ours(row) ?? papers(row), title: (row) => describe(row, metric), ...tip(width) })),
    ],
  });
}

// Ticks of a logarithmic axis: 1, 2, 5, 10 … where there are enough of them.
function decimal(low, high) {
  const powers = d3.range(Math.floor(Math.log10(low)), Math.log10(high) + 1);
  const ticks = powers.flatMap((power) => [1, 2, 5].map((i) => i * 10 ** power));
  const inside = ticks.filter((tick) => low <= tick && tick <= high);
  return inside.length > 2 ? inside : d3.ticks(low, high, 4);
}

// The looks of a block's rows, base's the 0th.
const look = (i) => ({ stroke: `var(--series-${i && 1 + (i - 1) % 7})`, strokeDasharray: DASHES[i % DASHES.length] });

// How a number went in rows; index tells which look a row has.
function curve(found, index, column, width) {
  const [label, type] = LOGGED[column];
  const lines = found.map(({ row, points }) => points.map(([step, mean, low, high, n]) => ({ row, step, mean, low, high, n })));
  const all = lines.flat();
  const last = d3.max(all, (point) => point.step);
  const late = all.filter((point) => point.step >= last / 10); // what comes before would press the rest together
  const limits = [d3.min(late, (point) => point.low), d3.max(late, (point) => point.high)];
  const ticks = type === "log" ? decimal(...limits) : d3.ticks(...limits, 5);
  const style = (points) => look(index(points[0].row));
  const span = ({ low, high, n }) => n > 1 ? ` [${number(low, 3)},\u00a0${number(high, 3)}], ${n}\u00a0seeds` : ", one seed";
  const title = (point) => `${point.row}, step ${count(point.step)}\n${number(point.mean, 3)}${span(point)}`;
  const near = { maxRadius: 200, x: "step", y: "mean" };
  return image({
    width, height: 240, marginLeft: 46, marginBottom: 38, marginRight: 14, style: LOOK,
    x: { ...ACROSS, label: "updates", ticks: width / 90, domain: [0, last] },
    y: { type, label, labelArrow: "none", ticks, tickFormat: count, domain: limits },
    ariaLabel: `${label} against updates: ${found.map((one) => one.row).join(", ")}`,
    marks: [
      Plot.gridY({ ...GRID, ticks }),
      ...lines.map((points) => Plot.areaY(points.filter((point) => point.n > 1), {
        x: "step", y1: "low", y2: "high", fill: style(points).stroke, fillOpacity: 0.15, clip: true,
      })),
      ...lines.map((points) => Plot.lineY(points, { x: "step", y: "mean", ...style(points), strokeWidth: 1.6, clip: true })),
      Plot.dot(lines.filter((points) => points.length === 1).flat(), { x: "step", y: "mean", fill: (point) => look(index(point.row)).stroke }),
      Plot.dot(late, Plot.pointer({ ...near, r: 3.5, fill: (point) => look(index(point.row)).stroke })),
      Plot.tip(late, Plot.pointer({ ...near, title, ...tip(width) })),
    ],
  });
}
