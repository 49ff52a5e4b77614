// shows the rows that have all words and the verdict; a study or paper without any such row is hidden with its heading
(() => {
  const form = document.getElementById("filter"), shown = document.getElementById("shown");
  const none = document.getElementById("none"), rows = [...document.querySelectorAll("tr[data-verdict]")];
  const texts = new Map(rows.map(row => {
    const study = row.closest("section.study, section.paper");
    return [row, `${row.textContent} ${study.dataset.text || ""}`.toLowerCase()];
  }));
  const apply = () => {
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdict = form.elements.verdict.value, all = !words.length && !verdict;
    let count = 0;
    for (const row of rows) {
      const fits = (!verdict || row.dataset.verdict.split(" ").includes(verdict))
        && words.every(word => texts.get(row).includes(word));
      row.hidden = !fits;
      count += fits;
    }
    for (const section of document.querySelectorAll("section.study, section.paper")) {
      section.hidden = !all && !section.querySelector("tr[data-verdict]:not([hidden])");
    }
    shown.textContent = all ? "" : `${count} of ${rows.length} shown`;
    none.hidden = all || count > 0;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", event => event.preventDefault());
  form.hidden = false;
  apply();  // the browser may have kept what was in the form
})();
