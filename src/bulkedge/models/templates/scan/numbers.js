// the numbers of one head: value, range over texts, what the null has in its place and how rare that is
const SKIPPED = new Set(["kind", "agreement"]);
if (scan.draws > 0) ["null_distance", "p_spectrum"].forEach(name => SKIPPED.add(name)); // they stand beside the distance
const TESTED = { distance: ["null_distance", "p_spectrum"] };
const besides = name => TESTED[name] || [`null_${name}`, `p_${name}`];
const measured = carried.columns.filter(
  ({ name, group }) =>
    !SKIPPED.has(name) &&
    group !== "longer context" &&
    !/^score_/.test(name) &&
    !/^(p|null)_(?!distance$|spectrum$)/.test(name),
);

const rangeText = (from, name, head) => {
  if (!from.low[name] || Number.isNaN(from.low[name][head])) return "";
  const [low, high] = [shown(from.low[name][head]), shown(from.high[name][head])];
  return low === high ? "" : `${low} to ${high}`;
};

const numbersTable = head => {
  const tested = scan.draws > 0,
    top = ["", before ? carried.labels[0] : "value"];
  if (before) top.push(carried.labels[1]);
  if (tested) top.push("null", "p");
  const body = make("tbody");
  let group = null;
  for (const column of measured) {
    if (column.group !== group) {
      group = column.group;
      body.append(make("tr", { class: "group" }, make("th", { colspan: top.length, scope: "rowgroup" }, group)));
    }
    const range = rangeText(scan, column.name, head),
      value = valueOf(scan, column.name, head);
    const cells = [
      make(
        "th",
        { scope: "row", title: column.sentence },
        column.title,
        make("small", {}, column.unit ? ` ${column.unit}` : ""),
      ),
      make("td", { class: "number" }, shown(value), make("small", {}, range ? ` ${range}` : "")),
    ];
    if (before) cells.push(make("td", { class: "number" }, shown(valueOf(before, column.name, head))));
    if (tested) {
      for (const name of besides(column.name)) {
        cells.push(make("td", { class: "number" }, scan.values[name] ? shown(valueOf(scan, name, head)) : ""));
      }
    }
    body.append(make("tr", { "data-column": column.name }, ...cells));
  }
  return make(
    "table",
    { class: "numbers" },
    make(
      "thead",
      {},
      make("tr", {}, ...top.map((text, place) => make("th", { scope: "col", class: place ? "number" : "" }, text))),
    ),
    body,
  );
};
const scoreBars = head => {
  const list = make("ul", { class: "bars" });
  const scores = carried.columns
    .filter(({ name }) => name.startsWith("score_"))
    .map(column => [column, valueOf(scan, column.name, head)])
    .filter(([, value]) => !Number.isNaN(value))
    .sort((one, two) => two[1] - one[1]);
  for (const [column, value] of scores) {
    const fill = make("i");
    fill.style.width = `${Math.min(Math.max(value, 0), 1) * 100}%`;
    fill.style.backgroundColor = kindColour(column.kind);
    list.append(
      make(
        "li",
        { class: scan.kinds[head].includes(column.kind) ? "held" : "" },
        make("span", {}, column.title.replace(/^score: /, "")),
        make("span", { class: "track" }, fill),
        make("span", { class: "number" }, value.toFixed(2)),
      ),
    );
  }
  return scores.length ? list : null;
};

const longerTable = head => {
  if (!factors.length || !factors.some(factor => scan.values[`scale_${factor}`])) return null;
  const rows = factors.map(factor =>
    make(
      "tr",
      {},
      make(
        "th",
        { scope: "row" },
        `${factor}×`,
        make("small", {}, scan.tokens ? ` ${scan.tokens * factor} tokens` : ""),
      ),
      make("td", { class: "number" }, shown(valueOf(scan, `longer_entropy_${factor}`, head))),
      make("td", { class: "number" }, shown(valueOf(scan, `scale_${factor}`, head))),
    ),
  );
  return make(
    "table",
    { class: "numbers longer" },
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        make("th", { scope: "col" }, "context"),
        make("th", { scope: "col", class: "number" }, "entropy, nats"),
        make("th", { scope: "col", class: "number" }, "factor on scores"),
      ),
    ),
    make("tbody", {}, ...rows),
  );
};
