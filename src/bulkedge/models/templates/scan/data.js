// what the page carries, decoded. Scan 0 is the one that the page is about; scan 1, if there is one, came before it.
const carried = JSON.parse(document.getElementById("data").textContent);
const { heads, kinds, levels, factors } = carried;
const count = heads.layer.length;
const number = value => (value === null ? NaN : Number(value));
const numbers = lists => Object.fromEntries(Object.entries(lists).map(([name, list]) => [name, list.map(number)]));

const bytes = text => {
  const raw = atob(text),
    found = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place += 1) found[place] = raw.charCodeAt(place);
  return found;
};

const scans = carried.scans.map(scan => {
  let pictures = null;
  const bands = Object.fromEntries(
    Object.entries(scan.bands).map(([name, text]) => [name, new Float32Array(bytes(text).buffer)]),
  );
  return {
    ...scan,
    values: numbers(scan.values),
    low: numbers(scan.low),
    high: numbers(scan.high),
    strips: numbers(scan.strips),
    band: (name, head) => bands[name] && bands[name].subarray(head * levels.length, (head + 1) * levels.length),
    picture: head => {
      // decoded when the first head is opened: three quarters of the page are pictures
      if (!scan.pictures) return null;
      pictures = pictures || bytes(scan.pictures);
      const size = scan.shape[0] * scan.shape[1];
      return pictures.subarray(head * size, (head + 1) * size);
    },
  };
});
const [scan, before] = scans;
const columns = new Map(carried.columns.map(column => [column.name, column]));
const kindNamed = new Map(kinds.map((kind, place) => [kind.name, { ...kind, place }]));
const placeOf = new Map(heads.layer.map((layer, head) => [`${layer}.${heads.head[head]}`, head]));
const nameOf = head => `layer ${heads.layer[head]}, head ${heads.head[head]}`;

const state = { column: "kind", kinds: new Set(), head: null };

// four digits for what is measured, and words for what is not a number
const shown = value => {
  if (value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text =
    size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replace("-", "−").replace("e−", "e-").replace("e+", "e");
};
const valueOf = (from, name, head) => (from.values[name] ? from.values[name][head] : NaN);
// a head counts as its first kind, as in the summary
const isOf = (from, head, name) => from.kinds[head][0] === name;

// elements; text goes in as text, never as markup
const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
};
const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const part = id => document.getElementById(id);
