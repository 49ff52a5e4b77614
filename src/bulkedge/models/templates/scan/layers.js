// what is known of whole layers: the tokens that enter them, and what a longer context would ask for
const middleOf = list => {
  const found = list.filter(Number.isFinite).sort((one, two) => one - two),
    half = found.length / 2;
  return found.length ? (found[Math.floor(half)] + found[Math.ceil(half) - 1]) / 2 : NaN;
};

const strips = () => {
  const place = part("strips");
  for (const [name, { title, unit, sentence }] of Object.entries(carried.strips)) {
    if (!scan.strips[name]) continue;
    const every = scan.strips[name].length === rowsOf.length; // the layers read may be a few of all
    const x = every ? rowsOf : scan.strips[name].map((_, layer) => layer);
    const lines = [{ y: scan.strips[name], name: "own", dots: true, label: title }];
    if (before && before.strips[name])
      lines.unshift({ y: before.strips[name], name: "before", dots: true, label: carried.labels[1] });
    place.append(
      make(
        "figure",
        {},
        make("figcaption", {}, `${title[0].toUpperCase()}${title.slice(1)}`),
        chart(
          x,
          lines,
          { across: "layer", up: unit, x: "in layer", says: `${title} by layer` },
          { whole: true, floor: 0 },
        ),
        before
          ? key([
              ["own", carried.labels[0]],
              ["before", carried.labels[1]],
            ])
          : null,
        make("p", { class: "faint small" }, sentence),
      ),
    );
  }
  part("layers").hidden = !place.children.length;
};

// what removing the cheapest heads costs, all of the scan's heads in the order of their removal
const worth = () => {
  const found = carried.worth;
  part("worth").hidden = !found;
  if (!found) return;
  const x = [0, ...found.heads],
    y = [0, ...found.cost.map(number)],
    error = [0, ...found.error.map(number)];
  const measured = x.map(heads => {
    const one = found.measured.find(each => each.heads === heads);
    return one ? number(one.cost) : NaN;
  });
  const lines = [{ y, name: "own", label: "predicted" }];
  if (found.measured.length) lines.push({ y: measured, name: "two", dots: true, label: "measured" });
  part("worth-chart").append(
    make(
      "figure",
      {},
      make("figcaption", {}, "Cost of the cheapest heads together"),
      chart(
        x,
        lines,
        { across: "heads removed", up: "cost", x: "of", says: "predicted cost by number of heads removed" },
        { band: [y.map((value, place) => Math.max(0, value - error[place])), y.map((value, place) => value + error[place])],
          whole: true, floor: 0 },
      ),
      key([
        ["own", "predicted"],
        ["band", "its standard error"],
        found.measured.length && ["two", "measured"],
      ]),
    ),
  );
  if (columns.has("importance")) {
    const button = make("button", { type: "button" }, "colour the map by importance");
    button.addEventListener("click", () => {
      state.column = "importance";
      refresh();
      part("maps").scrollIntoView({ block: "nearest" });
    });
    part("worth-chart").append(make("p", {}, button));
  }
};

const longer = () => {
  const offered = factors.filter(factor => scan.values[`scale_${factor}`]),
    place = part("longer-chart");
  part("longer").hidden = !offered.length;
  if (!offered.length) return;
  const medians = factor =>
    rowsOf.map(layer =>
      middleOf(scan.values[`scale_${factor}`].filter((_, head) => heads.layer[head] === layer)),
    );
  const names = ["one", "two", "three"];
  place.append(
    make(
      "figure",
      {},
      make("figcaption", {}, "Score scale, median of each layer's heads"),
      chart(
        rowsOf,
        offered.map((factor, line) => ({ y: medians(factor), name: names[line % 3], dots: true, label: `${factor}×` })),
        { across: "layer", up: "factor on scores", x: "in layer", says: "score scale by layer" },
        { whole: true },
      ),
      key(offered.map((factor, line) => [names[line % 3], `${factor}× the tokens`])),
    ),
  );
  place.append(
    make(
      "ul",
      { class: "says" },
      ...offered.map(factor => {
        const found = scan.values[`scale_${factor}`].filter(Number.isFinite),
          length = scan.tokens ? ` (${scan.tokens * factor} tokens)` : "";
        return make(
          "li",
          {},
          `At ${factor}× the context${length}, the median head keeps its entropy if its scores are multiplied by ${shown(middleOf(found))}` +
            (found.length > 1
              ? ` (all heads: from ${shown(Math.min(...found))} to ${shown(Math.max(...found))}).`
              : "."),
        );
      }),
    ),
  );
};
