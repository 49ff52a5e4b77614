// small charts with labelled axes, drawn when they are needed
const WIDE = 380,
  HIGH = 230,
  LEFT = 58,
  RIGHT = 10,
  TOP = 10,
  BOTTOM = 40;

const niceTicks = (low, high, most) => {
  const raw = (high - low) / most,
    power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(each => each * power).find(each => each >= raw);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) {
    found.push(Number(tick.toPrecision(12)));
  }
  return found;
};
const decades = (low, high) => {
  const first = Math.ceil(Math.log10(low) - 1e-9),
    last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.ceil((last - first + 1) / 6);
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, place) => 10 ** (first + place * step));
};
const tickText = value => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(0).replace("e+", "e");
  return shown(value);
};

// one axis: where values go, and its ticks
const axis = (values, from, to, log) => {
  let low = Math.min(...values),
    high = Math.max(...values);
  if (!log) {
    if (low === high) [low, high] = [low - (Math.abs(low) / 2 || 0.5), high + (Math.abs(high) / 2 || 0.5)];
    return { at: value => from + ((to - from) * (value - low)) / (high - low), ticks: niceTicks(low, high, 5), low };
  }
  low = Math.max(low, high * 1e-6); // what is smaller is rounding, and is drawn on the floor
  if (high / low < 10) [low, high] = [low / 2, high * 2];
  const at = value => from + ((to - from) * Math.log(Math.max(value, low) / low)) / Math.log(high / low);
  const found = decades(low, high);
  return {
    at,
    ticks: found.length > 1 ? found : [low, Math.sqrt(low * high), high].map(v => Number(v.toPrecision(2))),
    low,
  };
};

const path = (x, y, across, up) => {
  let text = "",
    pen = "M";
  x.forEach((value, place) => {
    if (!Number.isFinite(y[place])) {
      pen = "M";
      return;
    }
    text += `${pen}${across.at(value).toFixed(1)} ${up.at(y[place]).toFixed(1)}`;
    pen = "L";
  });
  return text;
};

// lines: [{ y, name, dots }] over the same x; band: [low, high]; words: { across, up, says }
const chart = (x, lines, words, options) => {
  const { band = null, log = false, whole = false, floor = null } = options || {};
  const every = lines
    .flatMap(line => [...line.y])
    .concat(band ? [...band[0], ...band[1]] : [])
    .filter(Number.isFinite);
  const svg = draw("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": words.says, class: "chart" });
  if (!every.length) return make("p", { class: "faint" }, "No numbers to draw.");
  const across = axis([...x], LEFT, WIDE - RIGHT, false),
    base = HIGH - BOTTOM;
  const positive = every.filter(value => value > 0),
    logged = log && positive.length > 0;
  const up = axis(logged ? positive : every.concat(floor === null ? [] : [floor]), base, TOP, logged);
  for (const tick of up.ticks) {
    const y = up.at(tick);
    svg.append(
      draw("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y, y2: y, class: "grid" }),
      draw("text", { x: LEFT - 5, y: y + 4, "text-anchor": "end" }, tickText(tick)),
    );
  }
  for (const tick of across.ticks.filter(each => !whole || Number.isInteger(each))) {
    svg.append(
      draw("line", { x1: across.at(tick), x2: across.at(tick), y1: base, y2: base + 4, class: "tick" }),
      draw("text", { x: across.at(tick), y: base + 16, "text-anchor": "middle" }, tickText(tick)),
    );
  }
  svg.append(draw("line", { x1: LEFT, x2: WIDE - RIGHT, y1: base, y2: base, class: "tick" }));
  if (band) {
    const back = path([...x].reverse(), [...band[1]].reverse(), across, up).replace(/^M/, "L");
    svg.append(draw("path", { d: `${path(x, band[0], across, up)}${back}Z`, class: "band" }));
  }
  for (const line of lines) {
    svg.append(draw("path", { d: path(x, line.y, across, up), class: `line ${line.name}` }));
    if (!line.dots) continue;
    x.forEach((value, place) => {
      if (!Number.isFinite(line.y[place])) return;
      svg.append(
        draw(
          "circle",
          { cx: across.at(value), cy: up.at(line.y[place]), r: 2.4, class: `dot ${line.name}` },
          draw("title", {}, `${line.label || ""} ${words.x || "at"} ${shown(value)}: ${shown(line.y[place])}`.trim()),
        ),
      );
    });
  }
  svg.append(
    draw("text", { x: (LEFT + WIDE - RIGHT) / 2, y: HIGH - 6, "text-anchor": "middle", class: "label" }, words.across),
    draw(
      "text",
      {
        x: 11,
        y: (TOP + base) / 2,
        "text-anchor": "middle",
        class: "label",
        transform: `rotate(-90 11 ${(TOP + base) / 2})`,
      },
      words.up + (logged ? " (log)" : ""),
    ),
  );
  return svg;
};

// what the lines of a chart are
const key = entries =>
  make(
    "p",
    { class: "key" },
    ...entries
      .filter(Boolean)
      .flatMap(([name, text]) => [
        make("span", { class: "entry" }, make("span", { class: `swatch ${name}` }), ` ${text}`),
        " ",
      ]),
  );
