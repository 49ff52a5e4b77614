// What the page does by itself: it asks the server for one figure at a time, always for the latest parameters, keeps
// the address up to date, and knows dark from light. Everything else is in Python.
(function () {
  "use strict";
  let busy = 0, again = false, timer = 0, late = 0, values = {}, about = null, version = -1, order = "", seed = 0;
  let gone = false;
  const STUCK = 5000, LATE = 600, BEAT = 4000;

  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  try {
    const kept = localStorage.getItem("bulkedge-theme");
    if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  } catch (error) { /* a page without storage has the theme of the system */ }

  function look() {
    if (document.getElementById("matrix-status"))
      dash_clientside.set_props("look", { data: { dark: dark(), narrow: innerWidth < 1000 } });
  }

  function ask() {
    look();
    if (!about) return;
    clearTimeout(timer);
    if (!late) late = setTimeout(outdated, LATE);
    if (busy && performance.now() - busy < STUCK) { again = true; return; }
    busy = performance.now();
    again = false;
    const data = { room: about.room, page: about.page, values: values, dark: dark(), narrow: innerWidth < 1000,
      version: version, order: order, seed: seed, time: busy };
    order = "";
    dash_clientside.set_props("asked", { data: data });
  }

  // the figure of other parameters is pale until it is that of these
  function outdated() {
    document.getElementById("frame")?.classList.add("stale");
    beat();
  }

  function upToDate() {
    clearTimeout(late);
    late = 0;
    document.getElementById("frame")?.classList.remove("stale");
  }

  // is the server still there? the page says so if not, and goes on when it is back
  async function beat() {
    let there = true;
    try { there = (await fetch("/alive", { cache: "no-store" })).ok; } catch (error) { there = false; }
    if (there === !gone) return;
    gone = !there;
    document.getElementById("gone")?.remove();
    if (gone) {
      const said = document.createElement("div");
      said.id = "gone";
      said.className = "problem";
      said.setAttribute("role", "alert");
      said.textContent = "The server has stopped, and what is shown no longer follows the controls. " +
        "Start bulkedge explore again: this page goes on by itself if it is at the same address.";
      document.querySelector("header")?.after(said);
    } else { busy = 0; version = -1; ask(); }
  }
  setInterval(() => { if (document.visibilityState === "visible") beat(); }, BEAT);

  function toldOfFile(said) {
    dash_clientside.set_props("matrix-status", { children: said });
  }

  function refused(said) {
    toldOfFile("Refused: " + said);
    dash_clientside.set_props("matrix-fit", { data: null });
  }

  // files that the browser would leave out without a word: several at once, of another kind, or too large
  function taken(files) {
    const drop = document.getElementById("drop-limits");
    if (!drop || !files.length) return;
    const file = files[0], most = Number(drop.dataset.most), name = file.name, size = (file.size / 2 ** 20).toFixed(0);
    if (files.length > 1) refused("several files at once; send one.");
    else if (!/\.(npy|safetensors)$/i.test(name))
      refused(`${name} is neither .npy nor .safetensors: np.save(path, matrix) writes the former.`);
    else if (file.size > most) refused(`${name} has ${size} MB, more than ${most >> 20}: save one matrix of it.`);
    else toldOfFile(`Reading ${name} …`);
  }
  document.addEventListener("change", (event) => {
    if (event.target.type === "file") taken(event.target.files);
  }, true);
  document.addEventListener("drop", (event) => {
    if (event.target.closest?.("#upload")) taken(event.dataTransfer.files);
  }, true);

  // texts of all parameters, from the positions of sliders
  function read(given, ids) {
    const found = {};
    ids.forEach((id, k) => {
      const name = id.parameter, value = given[k], stops = about.stops[name];
      if (stops) {
        const place = Math.min(Math.max(Math.round(Number(value)) || 0, 0), stops.length - 1);
        found[name] = stops[place];
        const input = document.getElementById(JSON.stringify(id)), output = document.getElementById("value-" + name);
        if (input) input.setAttribute("aria-valuetext", stops[place]);
        if (output) output.textContent = stops[place];
      } else {
        found[name] = Array.isArray(value) ? (value.length ? "True" : "False") : String(value);
      }
    });
    return found;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { explore: {
    changed(given, ids, said) {
      if (!about || about.page !== said.page) { about = said; busy = 0; seed = said.seed; }
      values = read(given, ids);
      version = -1;
      ask();
      return window.dash_clientside.no_update;
    },
    answered(answer) {
      if (!answer || !about || answer.page !== about.page) return window.dash_clientside.no_update;
      busy = 0;
      version = answer.version;
      if (!again) upToDate();
      if ("seed" in answer) seed = answer.seed;
      if (answer.query !== null) history.replaceState(history.state, "", "/" + about.room + "?" + answer.query);
      const button = document.getElementById("stop");
      if (button) {
        button.textContent = answer.running ? "Stop" : answer.whole === false ? "Go on" : "Simulate again";
        button.disabled = !answer.simulated;
      }
      if (again) ask(); else if (answer.running) timer = setTimeout(ask, 250);
      return window.dash_clientside.no_update;
    },
    stop(clicks) {
      if (clicks) {
        order = document.getElementById("stop").textContent === "Stop" ? "stop" : "again";
        ask();
      }
      return window.dash_clientside.no_update;
    },
    theme(clicks) {
      if (clicks) {
        const next = dark() ? "light" : "dark";
        document.documentElement.dataset.theme = next;
        try { localStorage.setItem("bulkedge-theme", next); } catch (error) { /* as above */ }
        version = -1;
        ask();
      }
      return window.dash_clientside.no_update;
    },
    opened() {
      setTimeout(look, 50);
      return window.dash_clientside.no_update;
    },
    picture(clicks) {
      const drawn = document.querySelector("#figure .js-plotly-plot");
      const name = about ? about.room : "matrix";
      if (clicks && drawn) window.Plotly.downloadImage(drawn, { format: "svg", filename: "bulkedge-" + name });
      return window.dash_clientside.no_update;
    },
    training(clicks) {
      if (clicks) toldOfFile("Taking a head of the embedded decoder; before the first it is trained, for half a minute or more …");
      return window.dash_clientside.no_update;
    },
    located(query) {
      if (typeof query === "string") history.replaceState(history.state, "", "/matrix" + (query && "?" + query));
      return window.dash_clientside.no_update;
    },
    clicked(event) {
      const point = event && event.points && event.points[0];
      if (!point || !about) return window.dash_clientside.no_update;
      const axis = point.xaxis_number || axisOf(point.curveNumber), names = about.clicks[axis];
      if (names) [[names[0], point.x], [names[1], point.y]].forEach(([name, value]) => {
        const stops = about.stops[name];
        let best = 0;
        stops.forEach((text, k) => { if (Math.abs(text - value) < Math.abs(stops[best] - value)) best = k; });
        dash_clientside.set_props({ parameter: name }, { value: best });
      });
      dash_clientside.set_props("figure", { clickData: null });  // the same point may be meant again
      return window.dash_clientside.no_update;
    },
  } });

  function axisOf(curve) {
    const drawn = document.querySelector("#figure .js-plotly-plot");
    const name = drawn && drawn.data[curve] ? drawn.data[curve].xaxis || "x" : "x";
    return (Number(name.slice(1)) || 1) - 1;
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { version = -1; ask(); });
  let narrow = innerWidth < 1000;
  addEventListener("resize", () => {
    if ((innerWidth < 1000) !== narrow) { narrow = !narrow; version = -1; ask(); }
  });
})();
