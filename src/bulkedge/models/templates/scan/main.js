// controls, and the address that keeps what is shown
const chooser = part("column"),
  filter = part("filter");

const buildChooser = () => {
  for (const group of carried.groups) {
    const inside = carried.columns.filter(column => column.group === group);
    if (inside.length) {
      chooser.append(
        make("optgroup", { label: group }, ...inside.map(({ name, title }) => make("option", { value: name }, title))),
      );
    }
  }
  chooser.addEventListener("change", () => {
    state.column = chooser.value;
    refresh();
  });
};

const buildFilter = () => {
  const entry = (name, title, sentence, colour) => {
    const [many, earlier] = [scan, before || scan].map(
      from => from.kinds.filter((_, head) => isOf(from, head, name)).length,
    );
    if (!many && !earlier) return;
    const swatch = make("span", { class: "swatch" });
    swatch.style.backgroundColor = colour;
    const button = make(
      "button",
      { type: "button", class: "chip", "aria-pressed": "false", "data-kind": name, title: sentence },
      swatch,
      `${title} `,
      make("small", {}, String(many)),
    );
    button.addEventListener("click", () => {
      if (!state.kinds.delete(name)) state.kinds.add(name);
      refresh();
    });
    filter.append(button);
  };
  for (const kind of kinds) entry(kind.name, kind.title, kind.sentence, kindColour(kind.name));
  const all = make("button", { type: "button", class: "chip plain", id: "all" }, "show all");
  all.addEventListener("click", () => {
    state.kinds.clear();
    refresh();
  });
  filter.append(all);
};

const choose = (head, move) => {
  state.head = head;
  mark();
  const title = part("head-title");
  if (move && part("head").getBoundingClientRect().top > window.innerHeight * 0.8) {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    title.scrollIntoView({ block: "start", behavior: still ? "auto" : "smooth" });
  }
};

// what changes with the head alone: its cells, its row, the panel, the address
let opened = null;
const mark = () => {
  if (state.head !== opened) {
    for (const head of [opened, state.head].filter(each => each !== null)) {
      maps.forEach(map => map.cells[head].setAttribute("aria-selected", String(head === state.head)));
      rows[head].classList.toggle("chosen", head === state.head);
    }
    if (state.head !== null) {
      maps.forEach(map => reach(map, state.head));
      openHead(state.head);
    }
    opened = state.head;
  }
  part("head").hidden = state.head === null;
  part("nothing").hidden = state.head !== null;
  write();
};

const write = () => {
  const words = new URLSearchParams();
  if (state.column !== "kind") words.set("column", state.column);
  if (state.kinds.size) words.set("kinds", [...state.kinds].join(","));
  if (state.head !== null) words.set("head", `${heads.layer[state.head]}.${heads.head[state.head]}`);
  const wanted = words.size || [...words].length ? `#${words}` : "#";
  if (wanted !== (location.hash || "#")) {
    try {
      history.replaceState(null, "", wanted);
    } catch {
      location.hash = wanted;
    }
  }
};
const read = () => {
  const words = new URLSearchParams(location.hash.slice(1)),
    column = words.get("column");
  state.column = columns.has(column) ? column : columns.has("kind") ? "kind" : carried.columns[0].name;
  state.kinds = new Set(
    (words.get("kinds") || "").split(",").filter(name => kindNamed.has(name)),
  );
  state.head = placeOf.has(words.get("head")) ? placeOf.get(words.get("head")) : null;
};

const refresh = () => {
  const { sentence } = columns.get(state.column);
  chooser.value = state.column;
  part("definition").textContent = sentence;
  filter
    .querySelectorAll("[data-kind]")
    .forEach(chip => chip.setAttribute("aria-pressed", String(state.kinds.has(chip.dataset.kind))));
  part("all").hidden = !state.kinds.size;
  paint();
  refreshTable();
  mark();
};

const THEMES = ["auto", "light", "dark"];
const theme = () => {
  const root = document.documentElement,
    button = part("theme");
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("bulkedge-theme") || "auto";
  } catch {
    /* storage is off: nothing is kept */
  }
  const apply = () => {
    if (!THEMES.includes(chosen)) chosen = "auto";
    if (chosen === "auto") delete root.dataset.theme;
    else root.dataset.theme = chosen;
    button.textContent = `colours: ${chosen}`;
  };
  button.addEventListener("click", () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    try {
      localStorage.setItem("bulkedge-theme", chosen);
    } catch {
      /* as above */
    }
    apply();
  });
  apply();
};

theme();
// what came before stands left
const pairs = scans.map((from, place) => [from, carried.labels[place]]).reverse();
for (const [from, label] of pairs) {
  const map = buildMap(from, label);
  maps.push(map);
  part("maps").append(make("figure", {}, before ? make("figcaption", {}, label) : null, map.grid));
}
buildChooser();
buildFilter();
buildTable();
strips();
worth();
longer();
read();
refresh();
sortRows();
spell();
window.addEventListener("resize", spell);
window.addEventListener("hashchange", () => {
  read();
  refresh();
});
document.body.classList.add("ready");
