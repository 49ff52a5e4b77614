// what is known of one head
const CHANCE = 0.05;

const sentencesOf = head => {
  const at = name => valueOf(scan, name, head),
    found = [];
  const names = scan.kinds[head];
  for (const name of names) {
    const { title, sentence } = kindNamed.get(name);
    found.push(sentence ? `${title[0].toUpperCase()}${title.slice(1)}: ${sentence}` : title);
  }
  if (!names.length) found.push("No kind: none of the scores reaches its threshold.");
  if (scan.texts > 1 && !Number.isNaN(at("agreement"))) {
    found.push(
      `Numbers are medians over ${scan.texts} texts, with their range; ${Math.round(at("agreement") * 100)} % of the texts give the same kind.`,
    );
  }
  if (scan.draws > 0 && !Number.isNaN(at("q"))) {
    const odd = at("q") < CHANCE;
    found.push(
      `Compared with random heads on the same inputs: p\u00a0=\u00a0${shown(at("p"))}, q\u00a0=\u00a0${shown(at("q"))} after correction for ${count} heads. ` +
        (odd
          ? "The head has structure that random heads do not have."
          : "No significant difference was found, which does not show that there is none."),
    );
  } else if (scan.draws === 0) {
    found.push("Not compared with random heads: the scan drew none, so there are no p-values.");
  }
  if (at("p_spectrum") >= CHANCE && !names.includes("random spectrum")) {
    found.push(
      "Its singular values alone could be those of random weights. That does not mean untrained, because singular values do not see order.",
    );
  }
  if (at("coupling") > 0.5) {
    found.push(
      `Its largest coupling, a² = ${shown(at("coupling"))}, is above ½: do not trust its predictions from the moments of queries and keys.`,
    );
  }
  return found;
};

// every fourth block of the first text by the token that it begins with
const LABELLED = 4;
const tokensAlong = (from, axis) =>
  make(
    "span",
    { class: `tokens ${axis}`, "aria-hidden": "true" },
    ...from.shownTokens
      .filter((_, place) => place % LABELLED === 0)
      .map(token => make("bdi", { title: token }, token.replace(/\s/g, "␣"))),
  );
const nameTokens = (canvas, from) =>
  canvas.addEventListener("mousemove", event => {
    const box = canvas.getBoundingClientRect(),
      places = from.shownTokens.length;
    const at = (offset, size) => from.shownTokens[Math.min(places - 1, Math.max(0, Math.floor((offset / size) * places)))];
    canvas.title = places
      ? `from “${at(event.clientY - box.top, box.height)}” to “${at(event.clientX - box.left, box.width)}”`
      : "";
  });

const pictureOf = (from, head, label) => {
  const image = from.picture(head);
  if (!image) return null;
  const [rows, wide] = from.shape;
  const canvas = make("canvas", {
    width: wide,
    height: rows,
    role: "img",
    "aria-label": `attention of ${nameOf(head)}, ${label}: queries down, keys across`,
  });
  const context = canvas.getContext("2d"),
    pixels = context.createImageData(wide, rows);
  image.forEach((value, place) => pixels.data.set([...between(AMOUNTS, value / 255), 255], 4 * place));
  context.putImageData(pixels, 0, 0);
  nameTokens(canvas, from);
  return make(
    "figure",
    { class: "picture" },
    make("figcaption", {}, before ? `Attention, ${label}` : "Attention"),
    make(
      "div",
      { class: "framed" },
      make("span", { class: "down" }, "query →"),
      tokensAlong(from, "rows"),
      canvas,
      tokensAlong(from, "keys"),
      make("span", { class: "across" }, "key →"),
    ),
    make(
      "p",
      { class: "faint small" },
      `Means over blocks${from.texts > 1 ? " of the first text" : ""}, square-root scale; the brightest is the largest.`,
    ),
  );
};

const spectrumOf = head => {
  const own = scan.band("spectrum", head),
    low = scan.band("null_low", head),
    high = scan.band("null_high", head);
  if (!own || !own.some(Number.isFinite)) return null;
  const banded = low && high && low.some(Number.isFinite),
    middle = banded && scan.band("null_middle", head);
  const earlier = before && before.band("spectrum", head);
  const lines = [
    middle && { y: middle, name: "middle" },
    earlier && { y: earlier, name: "before", label: carried.labels[1] },
    { y: own, name: "own", dots: true, label: "singular value" },
  ].filter(Boolean);
  const sizes = [...own].filter(value => value > 0),
    spans = Math.max(...sizes) / Math.min(...sizes) > 30;
  return make(
    "figure",
    {},
    make("figcaption", {}, "Spectrum, sinks taken away"),
    chart(
      levels,
      lines,
      {
        across: "share of singular values below",
        up: "singular value",
        x: "at share",
        says: `singular values of ${nameOf(head)}, ${shown(own[0])} to ${shown(own[own.length - 1])}`,
      },
      { band: banded ? [low, high] : null, log: spans, floor: 0 },
    ),
    key([
      ["own", before ? `this head, ${carried.labels[0]}` : "this head"],
      earlier && ["before", carried.labels[1]],
      banded && ["band", "null, 5 to 95 % of draws"],
      middle && ["middle", "null, median"],
    ]),
  );
};

const chips = (from, head) =>
  make(
    "p",
    { class: "chips" },
    ...from.kinds[head].map(name => {
      const swatch = make("span", { class: "swatch" });
      swatch.style.backgroundColor = kindColour(name);
      return make("span", { class: "chip" }, swatch, kindNamed.get(name).title);
    }),
  );

const openHead = head => {
  const panel = part("head"),
    path = carried.modules[heads.module[head]];
  const title = make(
    "h2",
    { id: "head-title", tabindex: "-1" },
    `Layer ${heads.layer[head]}, head ${heads.head[head]}`,
  );
  const labelled = (text, element) => (element ? make("section", {}, make("h3", {}, text), element) : null);
  panel.replaceChildren(
    ...[
      title,
      path ? make("p", { class: "faint small" }, make("code", {}, make("bdi", {}, path))) : null,
      chips(scan, head),
      before
        ? make("div", { class: "faint small" }, `${carried.labels[1]}: ${worded(before, head) || "no kind"}`)
        : null,
      make("ul", { class: "says" }, ...sentencesOf(head).map(text => make("li", {}, text))),
      make(
        "div",
        { class: "figures" },
        before && pictureOf(before, head, carried.labels[1]),
        pictureOf(scan, head, carried.labels[0]),
        spectrumOf(head),
      ),
      make(
        "div",
        { class: "details" },
        make(
          "div",
          {},
          labelled("Scores of the kinds", scoreBars(head)),
          labelled("At a longer context", longerTable(head)),
        ),
        labelled("Numbers", make("div", { class: "scroll" }, numbersTable(head))),
      ),
    ].filter(Boolean),
  );
};
