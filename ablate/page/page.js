// What the page does: filter, sort, theme, drawing again when its width changes, and following its server.
"use strict";

const state = { filter: "", sort: null, mode: "difference", theme: 0 };
const THEMES = [["auto", ""], ["light", "light"], ["dark", "dark"]];
const find = (selector) => [...document.querySelectorAll(selector)];
const data = () => JSON.parse(document.getElementById("data").textContent);
let numbers = data();

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Filter: rows whose name holds the words typed, any of them; base stays in figures, which compare with it.
function matches(name) {
  const words = state.filter.toLowerCase().split(/[\s,]+/).filter(Boolean);
  return !words.length || words.some((word) => name.toLowerCase().includes(word));
}

function filter() {
  for (const line of find("[data-row]")) line.hidden = !matches(line.dataset.row);
  for (const line of find("[data-rows]")) line.hidden = !JSON.parse(line.dataset.rows).some(matches);
  const shown = numbers.rows.filter((row) => matches(row.row)).length;
  document.getElementById("shown").textContent = state.filter ? `${shown} of ${numbers.rows.length} rows` : "";
  draw();
}

// Sort: ascending, descending, then as in the paper again. What has no number stays last.
function sort() {
  const table = document.querySelector(".sortable");
  const heads = [...table.querySelectorAll("thead tr:last-child th")];
  const bodies = [...table.tBodies];
  const rows = bodies.flatMap((body) => [...body.rows]);
  rows.forEach((row, i) => { row.place ??= [i, row.parentNode]; });
  heads.forEach((head, i) => head.setAttribute("aria-sort", state.sort?.column === i ? state.sort.order : "none"));
  if (!state.sort) {
    for (const row of rows.sort((a, b) => a.place[0] - b.place[0])) row.place[1].append(row);
    return;
  }
  const sign = state.sort.order === "ascending" ? 1 : -1;
  const key = (row) => row.cells[state.sort.column].dataset.sort;
  const order = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  rows.sort((a, b) => !key(a) - !key(b) || sign * order(key(a), key(b)) || a.place[0] - b.place[0]);
  bodies[0].append(...rows);
}

function sortBy(column) {
  const order = state.sort?.column === column ? { ascending: "descending", descending: null }[state.sort.order] : "ascending";
  state.sort = order && { column, order };
  sort();
}

// Drawing.
function figure(title, caption, svg) {
  const plot = make("div", { className: "plot" }, svg);
  return make("figure", {}, ...(title ? [make("h3", { textContent: title })] : []), plot, ...(caption ? [make("figcaption", { textContent: caption })] : []));
}

const widthOf = (element, columns = 1) => Math.max(240, Math.floor((element.clientWidth - 24 * (columns - 1)) / columns));

function draw() {
  const rows = numbers.rows.filter((row) => row.row === "base" || matches(row.row));
  for (const place of find("[data-figure=forest]")) {
    place.querySelector(".plot").replaceChildren(forest(rows, place.dataset.metric, widthOf(place)));
  }
  const base = rows.find((row) => row.row === "base");
  const settings = document.querySelector("[data-figures=settings]");
  const panels = numbers.varied.map(([block, name]) => [block, name, varying(rows, base, block, name)]).filter(([, , points]) => points.length);
  const width = widthOf(settings, Math.max(1, Math.floor((settings.clientWidth + 24) / (272 + 24))));
  settings.replaceChildren(...panels.flatMap(([block, name, points]) => Object.keys(METRICS).map((metric) =>
    figure(`(${block}) ${METRICS[metric].title} against ${name}`, "", setting(points, name, metric, state.mode, width)))));
  if (!panels.length) settings.append("No row shown varies a setting of Table 3’s blocks A to D.");
  drawCurves(rows);
}

function drawCurves(rows) {
  const place = document.querySelector("[data-figures=curves]");
  const blocks = [...new Set(numbers.rows.map((row) => row.block))].filter((block) => block !== "base");
  place.replaceChildren(...(blocks.length ? blocks : ["base"]).flatMap((block) => {
    // A row's look is its place in the whole block, so that a filter does not change it.
    const names = ["base", ...numbers.rows.filter((row) => row.block === block && row.row !== "base").map((row) => row.row)];
    const shown = rows.filter((row) => names.includes(row.row) && row.row !== "base");
    const found = numbers.curves.filter((one) => one.row === "base" || shown.some((row) => row.row === one.row));
    if (!shown.length && blocks.length) return [];
    const index = (row) => names.indexOf(row);
    const keys = rows.filter((row) => names.includes(row.row)).map((row) => key(row, index(row.row)));
    const width = widthOf(place, place.clientWidth > 700 ? 2 : 1);
    const plots = Object.keys(LOGGED).map((column) => {
      const own = found.filter((one) => one.column === column && names.includes(one.row));
      return own.length ? figure("", "", curve(own, index, column, width)) : make("p", { className: "faint", textContent: `No ${LOGGED[column][0]} logged yet.` });
    });
    const title = make("h3", { textContent: block === "base" ? "base" : `Block ${block}` });
    return [make("div", { className: "block" }, title, make("ul", { className: "keys" }, ...keys), make("div", { className: "two" }, ...plots))];
  }));
}

// A row's line in a legend.
function key(row, i) {
  const svg = d3.create("svg").attr("width", 26).attr("height", 8).attr("aria-hidden", "true");
  const { stroke, strokeDasharray } = look(i);
  svg.append("line").attr("x2", 26).attr("y1", 4).attr("y2", 4).attr("stroke-width", 2).attr("stroke", stroke).attr("stroke-dasharray", strokeDasharray);
  return make("li", {}, svg.node(), row.label);
}

// Wire up what is inside main: at the start, and after the server has sent a newer one.
function start() {
  find(".sortable thead tr:last-child button").forEach((button, i) => button.addEventListener("click", () => sortBy(i)));
  for (const radio of find("[name=mode]")) {
    radio.checked = radio.value === state.mode;
    radio.addEventListener("change", () => { state.mode = radio.value; draw(); });
  }
  if (state.sort) sort();
  filter();
}

document.getElementById("filter").addEventListener("input", (event) => {
  state.filter = event.target.value;
  filter();
});
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("theme").addEventListener("click", (event) => {
  state.theme = (state.theme + 1) % THEMES.length;
  const [name, scheme] = THEMES[state.theme];
  document.documentElement.style.colorScheme = scheme;
  event.target.textContent = `Theme: ${name}`;
});

let drawn = 0;
new ResizeObserver(([{ contentRect: { width } }]) => {
  if (drawn && Math.abs(width - drawn) > 1) draw();
  drawn = width;
}).observe(document.getElementById("main"));
let closed = [];
addEventListener("beforeprint", () => {
  closed = find("details:not([open])");
  for (const details of closed) details.open = true;
});
addEventListener("afterprint", () => closed.forEach((details) => { details.open = false; }));

// Follow the server: ask for its version, and when it has another take its main and numbers over, in place.
const EVERY_MS = 2000;
async function follow() {
  let said = "Following.";
  try {
    if (!document.hidden && await (await fetch("version")).text() !== document.documentElement.dataset.version) await renew();
  } catch (err) {
    said = `Not following: ${err.message}`;
  }
  const live = document.getElementById("live");
  if (live.textContent !== said) live.textContent = said;
  setTimeout(follow, EVERY_MS);
}

async function renew() {
  const answer = await fetch(".");
  if (!answer.ok) throw new Error(await answer.text());
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const opened = new Set(find("details[open]").map((details) => details.id));
  const main = document.getElementById("main");
  const focus = find("main a, main button, main summary, main input, main [tabindex]").indexOf(document.activeElement);
  const place = [scrollX, scrollY];
  for (const child of page.querySelectorAll("details[id]")) child.open = opened.has(child.id);
  document.documentElement.dataset.version = page.documentElement.dataset.version;
  document.getElementById("data").textContent = page.getElementById("data").textContent;
  numbers = data();
  main.replaceChildren(...page.getElementById("main").childNodes);
  start();
  if (focus >= 0) find("main a, main button, main summary, main input, main [tabindex]")[focus]?.focus({ preventScroll: true });
  scrollTo(...place);
}

start();
if (document.documentElement.dataset.version) follow();
