"use strict";
// Chapters of the course, and rooms where there is no server: a figure for every combination of values. The number of
// the combination counts the last parameter fastest. What a chapter reveals has a number of answered questions.
const places = {}, answered = {};
let current = null;
const NARROW = 1000;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
}

function button(text, click, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", click);
  return made;
}

const dark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function numberOf(own) {
  return current.controls.reduce((sum, each, k) => sum * each.values.length + own[k], 0);
}

const here = () => current.figures[numberOf(places[current.name])];
const solved = () => answered[current.name] || 0;

function draw() {
  if (!current.figures) return;
  const [curves, layout, own, words] = here(), parts = current.parts;
  let text = JSON.stringify({ data: curves.map((k) => parts[k]), layout: { ...parts[layout], ...own } });
  if (dark()) Object.entries(DARK).forEach(([light, other]) => { text = text.split(light).join(other); });
  const figure = JSON.parse(text), shown = (each) => (each.after || 0) <= solved(), named = new Set();
  figure.data = figure.data.filter(shown);
  figure.layout.shapes = figure.layout.shapes.filter(shown);
  [...figure.data, ...figure.layout.shapes].forEach((each) => {  // one entry of the legend for each name
    if (each.type === "heatmap" || each.marker?.size === 1) return;
    each.showlegend = !named.has(each.name);
    named.add(each.name);
  });
  Object.keys(figure.layout).filter((key) => key.startsWith("xaxis")).forEach((key) => {  // axes of what is not shown yet
    const xaxis = key.replace("axis", ""), yaxis = xaxis.replace("x", "y");
    figure.data.push({ type: "scatter", x: [null], y: [null], xaxis, yaxis, showlegend: false, hoverinfo: "skip" });
  });
  if (innerWidth < NARROW) stack(figure);
  if (words) document.getElementById("remark").textContent =
    solved() === current.questions.length ? words.final : words.remark;
  // or what Plotly draws again, with more in it, may lie over what comes after it
  document.getElementById("figure").style.height = figure.layout.height + "px";
  Plotly.react("figure", figure.data, figure.layout, { displayModeBar: false, responsive: true });
}

// panels below each other on a narrow page
function stack({ data, layout }) {
  const axes = Object.keys(layout).filter((key) => key.startsWith("xaxis")), images = [...layout.images];
  const worded = axes.some((key) => layout[key].ticktext), low = worded ? 60 : 0;
  const each = 300 + low, gap = (95 + low) / (each * axes.length), size = (1 - gap * (axes.length - 1)) / axes.length;
  axes.forEach((key, k) => {
    const up = [1 - k * (size + gap) - size, 1 - k * (size + gap)], name = key.replace("axis", "");
    const map = data.find((one) => one.type === "heatmap" && (one.xaxis || "x") === name);
    layout[key].domain = [0, map ? 0.83 : 1];
    layout[key.replace("x", "y")].domain = up;
    if (map) Object.assign(images.shift(), { x: 0.84, y: up[1], sizey: size });
  });
  layout.height = each * axes.length + 120;
  layout.legend.y = -(70 + low) / (each * axes.length - 90);
}

function control(each, k) {
  const own = places[current.name], output = element("output", {}, each.values[own[k]]);
  const set = (place) => { own[k] = place; output.textContent = each.values[place]; draw(); };
  const id = "control-" + each.name;
  let input;
  if (each.kind === "slider") {
    input = element("input", { type: "range", min: 0, max: each.values.length - 1, step: 1, value: own[k], id });
    input.addEventListener("input", () => {
      input.setAttribute("aria-valuetext", each.values[input.value]);
      set(Number(input.value));
    });
  } else {
    const names = { True: "yes", False: "no" };
    input = element("select", { id }, ...each.values.map((value) => element("option", {}, names[value] || value)));
    input.selectedIndex = own[k];
    input.addEventListener("change", () => set(input.selectedIndex));
    output.hidden = true;
  }
  input.dataset.name = each.name;
  const label = element("label", { for: id }, element("span", {}, each.title), output);
  return element("div", { class: "control" }, label, input, element("span", { class: "doc" }, each.doc));
}

// -- questions --------------------------------------------------------------------------------------------------------

function solve(number) {
  answered[current.name] = number + 1;
  draw();
  showQuestions();
}

// the place of a slider that answers: the first one, with everything else as it was at the start
function answer(number) {
  const own = current.controls.map((each) => each.start);
  for (let k = 0; k < current.controls[0].values.length; k++) {
    own[0] = k;
    if (current.figures[numberOf(own)][3].places[number] === 0) break;
  }
  places[current.name] = own;
  showControls();
  solve(number);
}

function question(each, number, count) {
  const done = number < solved(), told = element("p", { role: "status" });
  const legend = element("legend", {}, `Question ${number + 1} of ${count}` + (done ? ": answered" : ""));
  const box = element("fieldset", { class: done ? "question solved" : "question" }, legend, element("p", {}, each.ask));
  if (done) {
    box.append(element("p", {}, each.why));
    return box;
  }
  const wrong = (text) => { told.textContent = text; told.className = "wrong"; };
  const given = each.options.length ? each.options.map((option, k) => button(option, () =>
    k === each.right ? solve(number) : wrong("No. Think again, or ask for the answer."))) : [button("Check", () => {
    const place = here()[3].places[number];
    if (place) wrong(place < 0 ? each.low : each.high); else solve(number);
  })];
  given.push(button("Show me", () => each.options.length ? solve(number) : answer(number)));
  box.append(element("div", { class: "options" }, ...given), told);
  return box;
}

function showQuestions() {
  const all = current.questions, shown = all.slice(0, solved() + 1).map((each, k) => question(each, k, all.length));
  document.getElementById("solved").replaceChildren(...shown.slice(0, solved()));
  document.getElementById("questions").replaceChildren(...shown.slice(solved()));
}

function showControls() {
  document.getElementById("controls").replaceChildren(...current.controls.map(control));
}

// -- pages ------------------------------------------------------------------------------------------------------------

async function show(page) {
  current = page;
  history.replaceState(null, "", "#" + page.name);
  document.querySelectorAll("nav button").forEach((each) =>
    each.dataset.name === page.name ? each.setAttribute("aria-current", "page") : each.removeAttribute("aria-current"));
  const main = document.getElementById("page"), chapter = page.questions;
  const told = element("p", { class: "claim" }, page.shows + " " + page.not_claimed);
  const head = [element("h1", {}, (chapter ? page.number + ". " : "") + page.title),
    element("div", { class: "story" }, ...(page.story || []).map((text) => element("p", {}, text)), told)];
  if (!page.figures) {
    main.replaceChildren(...head, element("p", { role: "status" }, "This chapter is being computed, for some seconds …"));
    Object.assign(page, await (await fetch("/course/" + page.name + ".json")).json());
    if (current !== page) return;
  }
  places[page.name] = places[page.name] || page.controls.map((each) => each.start);
  const form = element("form", { class: "panel", id: "controls" });
  const python = element("details", { class: "python" }, element("summary", {}, "The same in Python"),
    element("pre", {}, page.script));
  const shown = element("div", { class: "shown" }, element("div", { id: "figure" }), python);
  if (chapter) shown.prepend(element("p", { class: "remark", id: "remark", role: "status" }));
  const aside = element("div", { class: "aside" }, form, element("div", { id: "solved" }), element("div", { id: "questions" }));
  main.replaceChildren(...head, element("div", { class: "room" }, aside, shown), onward(page));
  showControls();
  if (chapter) showQuestions();
  draw();
  if (chapter) ahead();
}

function onward(page) {
  const chapters = PAGES.filter((each) => each.questions), k = chapters.indexOf(page), made = element("div", { class: "onward" });
  if (k > 0) made.append(button("← " + chapters[k - 1].title, () => turn(chapters[k - 1])));
  if (k >= 0 && k + 1 < chapters.length) made.append(button(chapters[k + 1].title + " →", () => turn(chapters[k + 1])));
  return made;
}

function turn(page) {
  scrollTo(0, 0);
  show(page);
}

// the next chapter is fetched while this one is read
async function ahead() {
  const next = PAGES.find((each) => each.questions && !each.figures && !each.asked);
  if (!next) return;
  next.asked = true;
  try {
    const found = await (await fetch("/course/" + next.name + ".json")).json();
    if (!next.figures) Object.assign(next, found);
  } catch (error) { next.asked = false; return; }
  ahead();
}

PAGES.forEach((page) => {
  const name = (page.number ? page.number + " " : "") + (page.short || page.title);
  const made = page.link ? element("a", { href: page.link }, name) : button(name, () => show(page), { title: page.title });
  made.dataset.name = page.name;
  document.getElementById(page.number ? "course" : "rooms").append(made);
});
try {
  const kept = localStorage.getItem("bulkedge-theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
} catch (error) { /* a page without storage has the theme of the system */ }
document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  try { localStorage.setItem("bulkedge-theme", document.documentElement.dataset.theme); } catch (error) { /* as above */ }
  draw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("resize", draw);
addEventListener("hashchange", () => {
  const page = PAGES.find((each) => "#" + each.name === location.hash);
  if (page && page !== current) show(page);
});
show(PAGES.find((page) => "#" + page.name === location.hash) || PAGES[0]);
