// colours that people who see fewer of them can tell apart: cividis for amounts, blue to orange around zero,
// Paul Tol's muted scheme for kinds
const AMOUNTS = [
  "#00224e",
  "#123570",
  "#3b496c",
  "#575d6d",
  "#707173",
  "#8a8678",
  "#a59c74",
  "#c3b369",
  "#e1cc55",
  "#fee838",
];
const SIGNED = ["#1f4e8c", "#5b8fc7", "#a9c9e6", "#f2f0eb", "#f4c08a", "#dd8033", "#8f4511"];
const KIND_COLOURS = new Map([
  ["induction", "#e69f00"],
  ["duplicate", "#661100"],
  ["previous token", "#999933"],
  ["collapsed", "#ddcc77"],
  ["sink", "#332288"],
  ["fixed columns", "#88ccee"],
  ["offset", "#882255"],
  ["local", "#cc6677"],
  ["same token", "#aa4499"],
  ["low-rank content", "#117733"],
  ["content", "#44aa99"],
  ["random spectrum", "#bbbbbb"],
]);
const SPARE = ["#6699cc", "#000000"];
const kindColour = name =>
  KIND_COLOURS.get(name) || SPARE[(kindNamed.has(name) ? kindNamed.get(name).place : 0) % SPARE.length];

const channels = colour => [1, 3, 5].map(start => parseInt(colour.slice(start, start + 2), 16));
const between = (stops, share) => {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1),
    left = Math.min(Math.floor(place), stops.length - 2);
  const [one, two] = [channels(stops[left]), channels(stops[left + 1])];
  return one.map((value, channel) => Math.round(value + (two[channel] - value) * (place - left)));
};
const css = rgb => `rgb(${rgb.join(",")})`;
// dark or light letters, whichever the ground lets people read (relative luminance)
const lettersOn = rgb => {
  const [red, green, blue] = rgb.map(value =>
    value / 255 <= 0.04 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
};

const same = value => value;
const symlog = {
  // of distances in tokens: one and two are as different as a hundred and two hundred
  forth: value => Math.sign(value) * Math.log1p(Math.abs(value)),
  back: place => Math.sign(place) * Math.expm1(Math.abs(place)),
};

// from the values of a column, in all scans shown, to a scale that they share
const scaleOf = lists => {
  const found = lists.flat().filter(Number.isFinite);
  let low = Math.min(...found),
    high = Math.max(...found);
  const whole = found.every(Number.isInteger),
    positive = found.every(value => value > 0);
  let forth = same,
    back = same,
    stops = AMOUNTS,
    note = "";
  if (low < 0) {
    if (high > 0) [low, high, stops] = [-Math.max(-low, high), Math.max(-low, high), SIGNED];
    else stops = [...AMOUNTS].reverse(); // larger is brighter, whichever the sign
    if (whole && -low > 30) ({ forth, back } = symlog);
  } else if (positive && high / low > 10) {
    // one head far from the others would leave these all alike
    [forth, back, note] = [Math.log, Math.exp, "logarithmic"];
    if (low < high * 1e-5) [low, note] = [high * 1e-5, "logarithmic, smaller ones as the left end"];
  }
  if (low === high) [low, high] = positive ? [low / 2, high * 1.5] : [low - 0.5, high + 0.5];
  const place = value => (forth(value) - forth(low)) / (forth(high) - forth(low));
  const steps = whole && high - low <= 6 && Number.isInteger(low) ? high - low : 4;
  const ticks = Array.from({ length: steps + 1 }, (_, step) => {
    const value = back(forth(low) + ((forth(high) - forth(low)) * step) / steps);
    return [step / steps, Number(value.toPrecision(3))];
  });
  return { stops, ticks, note, colour: value => between(stops, place(value)), missing: found.length === 0 };
};
