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
  const before = state.sort?.column === column ? state.sort.order : "none";
  const order = { none: "ascending", ascending: "descending", descending: null }[before];
  state.sort = order && { column, order };
  sort();
}

// Drawing.
function figure(title, svg) {
  const heading = title ? [make("h3", { textContent: title })] : [];
  return make("figure", {}, ...heading, make("div", { className: "plot" }, svg));
}

const widthOf = (element, columns = 1) => Math.max(240, Math.floor((element.clientWidth - 24 * (columns - 1)) / columns));

function draw() {
  const rows = numbers.rows.filter((row) => row.row === "base" || matches(row.row));
  for (const place of find("[data-figure=forest]")) {
    place.querySelector(".plot").replaceChildren(forest(rows, place.dataset.metric, widthOf(place)));
  }
  const base = rows.find((row) => row.row === "base");
  const settings = document.querySelector("[data-figures=settings]");
  const panels = numbers.varied
    .map(([block, name]) => [block, name, varying(rows, base, block, name)])
    .filter(([, , points]) => points.length);
  const width = widthOf(settings, Math.max(1, Math.floor((settings.clientWidth + 24) / (272 + 24))));
  settings.replaceChildren(...panels.flatMap(([block, name, points]) => Object.keys(METRICS).map((metric) =>
    figure(`(${block}) ${METRICS[metric].title} against ${name}`, setting(points, name, metric, state.mode, width)))));
  if (!panels.length) settings.append("No row shown varies a setting of Table 3’s blocks A to D.");
  drawCurves(rows);
}

function drawCurves(rows) {
  const place = document.querySelector("[data-figures=curves]");
  const width = widthOf(place, place.clientWidth > 700 ? 2 : 1);
  const base = rows.filter((row) => row.row === "base");
  const blocks = d3.groups(rows.filter((row) => row.row !== "base"), (row) => row.block);
  place.replaceChildren(...(blocks.length ? blocks : [["base", []]]).map(([block, others]) => {
    // A row's look is its place in the whole block, so that a filter does not change it.
    const names = numbers.rows.filter((row) => row.block === block && row.row !== "base").map((row) => row.row);
    const index = (row) => names.indexOf(row) + 1;
    const shown = [...base, ...others];
    const plots = Object.keys(LOGGED).map((column) => {
      const found = numbers.curves.filter((one) => one.column === column && shown.some((row) => row.row === one.row));
      if (!found.length) return make("p", { className: "faint", textContent: `No ${LOGGED[column][0]} logged yet.` });
      return figure("", curve(found, index, column, width));
    });
    const title = make("h3", { textContent: block === "base" ? "base" : `Block ${block}` });
    const keys = make("ul", { className: "keys" }, ...shown.map((row) => key(row, index(row.row))));
    return make("div", { className: "block" }, title, keys, make("div", { className: "two" }, ...plots));
  }));
}

// A row's line in a legend.
function key(row, i) {
  const svg = d3.create("svg").attr("width", 26).attr("height", 8).attr("aria-hidden", "true");
  const { stroke, strokeDasharray } = look(i);
  const line = svg.append("line").attr("x2", 26).attr("y1", 4).attr("y2", 4).attr("stroke-width", 2);
  line.attr("stroke", stroke).attr("stroke-dasharray", strokeDasharray);
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
    const version = document.hidden ? null : await (await fetch("version")).text();
    if (version && version !== document.documentElement.dataset.version) await renew();
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
  const open = new Map(find("details").map((details) => [details.id, details.open]));
  const main = document.getElementById("main");
  const stops = () => find("main :is(a, button, summary, input, [tabindex])");
  const focus = stops().indexOf(document.activeElement);
  const place = [scrollX, scrollY];
  for (const child of page.querySelectorAll("details[id]")) child.open = open.get(child.id) ?? child.open;
  document.documentElement.dataset.version = page.documentElement.dataset.version;
  document.getElementById("data").textContent = page.getElementById("data").textContent;
  numbers = data();
  main.replaceChildren(...page.getElementById("main").childNodes);
  start();
  stops()[focus]?.focus({ preventScroll: true });
  scrollTo(...place);
}

start();
if (document.documentElement.dataset.version) follow();
