// all heads as a table; rows are made once and then only moved, hidden, or given the column shown. The roles are said
// because the rows are laid out as grids, which takes them from the elements
const TABLE = [
  "p",
  "q",
  "beta",
  "entropy",
  "largest",
  "sink_mass",
  "offset",
  "offset_mass",
  "near_mass",
  "column_energy",
  "stable_rank",
  "effective_rank",
  "distance",
  "induction",
  "scale_2",
  "scale_8",
  "scale_32",
].filter(name => scan.values[name]);
const order = { by: "place", down: false };
const rows = [];

const sortKey = head => {
  if (order.by === "place") return head;
  if (order.by === "kind") return worded(scan, head);
  return valueOf(scan, order.by === "shown" ? state.column : order.by, head);
};
const sortRows = () => {
  const sign = order.down ? -1 : 1;
  const keyed = rows.map((row, head) => [row, sortKey(head), head]);
  keyed.sort(([, one, first], [, two, second]) => {
    // what has no value comes last, whichever way
    const lost = Number.isNaN(one) - Number.isNaN(two);
    if (lost || Number.isNaN(one)) return lost || first - second;
    return (one < two ? -sign : one > two ? sign : 0) || first - second;
  });
  part("rows").append(...keyed.map(([row]) => row));
  for (const cell of part("table-head").children) {
    const mine = cell.dataset.by === order.by;
    cell.setAttribute("aria-sort", mine ? (order.down ? "descending" : "ascending") : "none");
  }
};

const headerCell = (by, title, sentence) => {
  const button = make("button", { type: "button", title: sentence || "" }, title);
  button.addEventListener("click", () => {
    order.down = order.by === by ? !order.down : by !== "place" && by !== "kind";
    order.by = by;
    sortRows();
  });
  return make(
    "th",
    { scope: "col", role: "columnheader", "data-by": by, class: by === "place" || by === "kind" ? "" : "number" },
    button,
  );
};

const buildTable = () => {
  part("table-head").append(
    headerCell("place", "head"),
    headerCell("kind", "kinds"),
    headerCell("shown", ""),
    ...TABLE.map(name => headerCell(name, columns.get(name).title, columns.get(name).sentence)),
  );
  const entry = (text, attributes) => make("td", { role: "cell", class: "number", ...attributes }, text);
  for (let head = 0; head < count; head += 1) {
    const link = make("a", { href: "#", "data-head": head }, `${heads.layer[head]}.${heads.head[head]}`);
    const words = worded(scan, head),
      values = TABLE.map(name => entry(shown(valueOf(scan, name, head))));
    const row = { role: "row", "data-head": head };
    rows.push(
      make("tr", row, entry(link, { class: "" }), entry(words, { class: "", title: words }), entry(""), ...values),
    );
  }
  part("rows").addEventListener("click", event => {
    const head = headOf(event);
    if (head === null) return;
    event.preventDefault();
    choose(head, true);
  });
};

const refreshTable = () => {
  const extra = state.column !== "kind" && !TABLE.includes(state.column),
    { title, sentence } = columns.get(state.column);
  const label = part("table-head").children[2];
  label.firstChild.textContent = title;
  label.firstChild.title = sentence;
  label.hidden = !extra;
  part("rows").parentElement.style.setProperty(
    "--widths",
    `4.6rem var(--words) repeat(${TABLE.length + extra}, 6.2rem)`,
  );
  let visible = 0;
  rows.forEach((row, head) => {
    const cell = row.children[2];
    cell.hidden = !extra;
    if (extra) cell.textContent = shown(valueOf(scan, state.column, head));
    row.hidden = !fits(scan, head);
    visible += !row.hidden;
  });
  part("visible").textContent =
    `${visible === count ? "" : `${visible} of `}${count} ${count === 1 ? "head" : "heads"}`;
  if (order.by === "shown") {
    if (!extra) Object.assign(order, { by: "place", down: false });
    sortRows();
  }
};
