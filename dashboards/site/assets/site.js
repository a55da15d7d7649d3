// Filters, sorting and tooltips. Every page is whole without them.
"use strict";

const plain = (element) => element.textContent.trim().replace(/\s+/g, " ");

// A form narrows what it is for: by a text anywhere in an item, by the value of a column, by an item's word.
function startFilter(form) {
  const target = document.getElementById(form.dataset.for);
  const items = [...target.querySelectorAll("[data-item]")];
  const said = form.querySelector("output");
  const keeps = (item) =>
    [...form.elements].every((control) => {
      if (!control.value || control === said) return true;
      if ("text" in control.dataset) {
        const group = item.closest("[data-group]");
        const told = plain(item) + (group ? " " + plain(group.querySelector("th")) : "");
        return told.toLowerCase().includes(control.value.trim().toLowerCase());
      }
      if ("word" in control.dataset) return item.dataset.words.split(" ").includes(control.value);
      return plain(item.cells[Number(control.dataset.column)]) === control.value;
    });
  const apply = () => {
    let kept = 0;
    for (const item of items) {
      const keep = keeps(item);
      item.classList.toggle("out", !keep);
      kept += keep;
    }
    for (const group of target.querySelectorAll("[data-group]")) {
      group.classList.toggle("out", !group.querySelector("[data-item]:not(.out)"));
    }
    said.textContent = kept === items.length ? "" : `${kept} of ${items.length} shown`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  apply(); // a browser may have kept what was typed before
}

// A press of a column's name sorts by it, the next one the other way round.
function startSorting(table) {
  const headings = [...table.querySelectorAll("thead th[aria-sort]")];
  headings.forEach((heading, place) => {
    heading.querySelector("button").addEventListener("click", () => {
      const rising = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of headings) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const key = (row) => row.cells[place].dataset.sort ?? plain(row.cells[place]);
      const compare = (a, b) =>
        a !== "" && b !== "" && !isNaN(a) && !isNaN(b)
          ? a - b
          : String(a).localeCompare(String(b), "en", { numeric: true });
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => (rising ? compare(a, b) : compare(b, a)));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

// What a point says, while the pointer is on it. The table beside a chart says the same.
function startTips() {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest?.("[data-tip]");
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tip;
    const box = mark.getBoundingClientRect();
    const left = Math.min(box.right + 8, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    tip.style.top = `${Math.max(4, box.top - tip.offsetHeight - 4) + scrollY}px`;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hidden = true;
  });
}

document.querySelectorAll("form.filters").forEach(startFilter);
document.querySelectorAll("table").forEach(startSorting);
startTips();
