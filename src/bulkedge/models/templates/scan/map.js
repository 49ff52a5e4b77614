// the map: a row a layer, a cell a head, one map a scan, all on one colour scale
const sorted = list => [...new Set(list)].sort((one, two) => one - two);
const rowsOf = sorted(heads.layer),
  columnsOf = sorted(heads.head);
const maps = [];

const fits = (from, head) => !state.kinds.size || [...state.kinds].some(name => isOf(from, head, name));

const buildMap = (from, label) => {
  const every = columnsOf.length > 16 ? 4 : 1;
  const grid = make("div", {
    class: `map${columnsOf.length > 16 ? " dense" : ""}`,
    role: "grid",
    "aria-label": `heads by layer, ${label}`,
  });
  grid.style.gridTemplateColumns = `2.1rem repeat(${columnsOf.length}, minmax(0, 2.4rem))`;
  const top = make(
    "div",
    { role: "row", class: "row" },
    make("span", { role: "columnheader", class: "corner" }, "head"),
  );
  columnsOf.forEach((head, place) => {
    top.append(make("span", { role: "columnheader", class: "axis" }, place % every ? "" : String(head)));
  });
  grid.append(top);
  const cells = new Array(count),
    rows = new Map(rowsOf.map(layer => [layer, []]));
  for (let head = 0; head < count; head += 1) rows.get(heads.layer[head]).push(head);
  rowsOf.forEach((layer, line) => {
    const inside = rows.get(layer),
      path = carried.modules[heads.module[inside[0]]] || "";
    const row = make(
      "div",
      { role: "row", class: "row" },
      make("span", { role: "rowheader", class: "axis", title: path }, String(layer)),
    );
    row.firstChild.style.gridRow = line + 2;
    for (const head of inside) {
      const cell = make("button", { type: "button", role: "gridcell", tabindex: "-1", "data-head": head });
      cell.style.gridRow = line + 2;
      cell.style.gridColumn = columnsOf.indexOf(heads.head[head]) + 2;
      cells[head] = cell;
      row.append(cell);
    }
    grid.append(row);
  });
  const found = { from, grid, cells, label };
  cells[0].tabIndex = 0;
  grid.addEventListener("click", event => {
    const head = headOf(event);
    if (head !== null) choose(head, true);
  });
  grid.addEventListener("pointerover", event => {
    const head = headOf(event);
    if (head !== null) readOut(found, head);
  });
  grid.addEventListener("focusin", event => {
    const head = headOf(event);
    if (head !== null) readOut(found, head);
  });
  grid.addEventListener("keydown", event => step(found, event));
  return found;
};
const headOf = event => {
  const cell = event.target.closest("[data-head]");
  return cell ? Number(cell.dataset.head) : null;
};

// arrows go to the next head, passing over places where a layer has none
const step = (map, event) => {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const head = headOf(event);
  if (head === null || !(event.key in moves || event.key === "Home" || event.key === "End")) return;
  event.preventDefault();
  let row = rowsOf.indexOf(heads.layer[head]),
    column = columnsOf.indexOf(heads.head[head]);
  const here = () => placeOf.get(`${rowsOf[row]}.${columnsOf[column]}`);
  const [down, right] = moves[event.key] || [0, event.key === "Home" ? 1 : -1];
  if (!(event.key in moves)) column = event.key === "Home" ? -1 : columnsOf.length;
  do {
    row += down;
    column += right;
  } while (row >= 0 && row < rowsOf.length && column >= 0 && column < columnsOf.length && here() === undefined);
  const next = here();
  if (next !== undefined) reach(map, next).focus();
};
const reach = (map, head) => {
  map.grid.querySelector("[tabindex='0']").tabIndex = -1;
  map.cells[head].tabIndex = 0;
  return map.cells[head];
};

const worded = (from, head) => from.kinds[head].map(name => kindNamed.get(name).title).join(", ");
const valueText = (from, head) => {
  if (state.column === "kind") return worded(from, head) || "no kind";
  const column = columns.get(state.column);
  return `${column.title} ${shown(valueOf(from, state.column, head))}`;
};
const readOut = (map, head) => {
  const kinds = state.column === "kind" ? "" : ` · ${worded(map.from, head)}`;
  part("readout").textContent =
    `${nameOf(head)}${before ? ` (${map.label})` : ""}: ${valueText(map.from, head)}${kinds}`;
};

const paint = () => {
  const lists = maps.map(map => map.from.values[state.column] || []);
  const scale = state.column === "kind" ? null : scaleOf(lists);
  for (const { from, cells, grid } of maps) {
    grid.classList.toggle("kinds", !scale);
    cells.forEach((cell, head) => {
      const main = kindNamed.get(from.kinds[head][0]),
        value = valueOf(from, state.column, head);
      const colour = scale
        ? Number.isNaN(value)
          ? null
          : scale.colour(value)
        : main && channels(kindColour(main.name));
      cell.style.backgroundColor = colour ? css(colour) : "";
      cell.style.color = colour ? lettersOn(colour) : "";
      cell.classList.toggle("missing", !colour);
      cell.classList.toggle("out", !fits(from, head));
      cell.textContent = scale || !main ? "" : main.mark;
      cell.setAttribute("aria-label", `${nameOf(head)}: ${valueText(from, head)}`);
    });
  }
  paintLegend(scale);
};

const paintLegend = scale => {
  const place = part("scale");
  place.hidden = !scale || scale.missing;
  if (place.hidden) return;
  const stops = scale.stops.map(each => each).join(", ");
  const bar = make("div", { class: "bar" }),
    ticks = make("div", { class: "ticks" });
  bar.style.background = `linear-gradient(to right, ${stops})`;
  for (const [share, value] of scale.ticks) {
    const tick = make("span", {}, shown(value));
    tick.style.left = `${share * 100}%`;
    ticks.append(tick);
  }
  const { unit } = columns.get(state.column);
  const empty = maps.some(map => (map.from.values[state.column] || [NaN]).some(Number.isNaN));
  place.replaceChildren(bar, ticks, make("p", { class: "faint" }, [unit, scale.note].filter(Boolean).join(", ")));
  if (empty) place.lastChild.append(make("span", { class: "swatch missing" }), " no value");
};

// letters stand in cells that have room for them
const spell = () => {
  maps.forEach(({ grid, cells }) => grid.classList.toggle("spelled", cells[0].clientWidth >= 19));
  const aside = document.querySelector(".aside"); // stays beside a long panel, with its end in view if it is taller
  aside.style.top = `${Math.min(16, window.innerHeight - aside.offsetHeight - 16)}px`;
};
