"use strict";
// a figure for every combination of values: the number of the combination counts the last parameter fastest
const places = {};
let current = null;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
}

function draw() {
  const number = current.controls.reduce((sum, each, k) => sum * each.values.length + places[current.name][k], 0);
  const [curves, layout, own] = current.figures[number], parts = current.parts;
  let text = JSON.stringify({ data: curves.map((k) => parts[k]), layout: { ...parts[layout], ...own } });
  if (matchMedia("(prefers-color-scheme: dark)").matches)
    Object.entries(DARK).forEach(([light, dark]) => { text = text.split(light).join(dark); });
  const figure = JSON.parse(text);
  if (innerWidth < 760) stack(figure.layout);
  Plotly.react("figure", figure.data, figure.layout, { displayModeBar: false, responsive: true });
}

// panels below each other on a narrow page
function stack(layout) {
  const axes = Object.keys(layout).filter((key) => key.startsWith("xaxis")), gap = 95 / (300 * axes.length);
  const size = (1 - gap * (axes.length - 1)) / axes.length;
  axes.forEach((key, k) => {
    layout[key].domain = [0, 1];
    layout[key.replace("x", "y")].domain = [1 - k * (size + gap) - size, 1 - k * (size + gap)];
  });
  layout.height = 300 * axes.length + 120;
  layout.legend.y = -0.28 / axes.length;
}

function control(each, k) {
  const own = places[current.name], output = element("output", {}, each.values[own[k]]);
  const set = (place) => { own[k] = place; output.textContent = each.values[place]; draw(); };
  let input;
  if (each.kind === "slider") {
    input = element("input", { type: "range", min: 0, max: each.values.length - 1, step: 1, value: own[k] });
    input.addEventListener("input", () => {
      input.setAttribute("aria-valuetext", each.values[input.value]);
      set(Number(input.value));
    });
  } else {
    const names = { True: "yes", False: "no" };
    input = element("select", {}, ...each.values.map((value) => element("option", {}, names[value] || value)));
    input.selectedIndex = own[k];
    input.addEventListener("change", () => set(input.selectedIndex));
    output.hidden = true;
  }
  input.dataset.name = each.name;
  return element("label", {}, output, each.title, input, element("small", {}, each.doc));
}

function show(room) {
  current = room;
  places[room.name] = places[room.name] || room.controls.map((each) => each.start);
  const form = element("form", {}, ...room.controls.map(control));
  const said = element("p", {}, room.shows + " ", element("span", { class: "faint" }, room.not_claimed));
  const layout = element("div", { class: "layout" }, form, element("div", { id: "figure" }));
  document.getElementById("room").replaceChildren(element("h1", {}, room.title), said, layout);
  document.querySelectorAll("nav button").forEach((each) =>
    each.setAttribute("aria-pressed", String(each.textContent === room.title)));
  draw();
}

ROOMS.forEach((room) => {
  const button = element("button", { type: "button" }, room.title);
  button.addEventListener("click", () => show(room));
  document.getElementById("rooms").append(button);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("resize", draw);
show(ROOMS.find((room) => "#" + room.name === location.hash) || ROOMS[0]);
