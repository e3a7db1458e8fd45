"use strict";
// Titles of marks as a box that also shows on touch; without this script the browser's own titles remain.
const tip = document.getElementById("tip");
function told(target) {
  const mark = target instanceof Element ? target.closest("svg [data-tip], svg :has(> title)") : null;
  if (!mark) return null;
  const title = mark.querySelector(":scope > title");
  if (title) {
    mark.dataset.tip = title.textContent;
    title.remove();
  }
  return mark.dataset.tip;
}
function show(event) {
  const words = told(event.target);
  tip.hidden = !words;
  if (!words) return;
  tip.textContent = words;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, event.clientX + 12), window.innerWidth - box.width - 8);
  const above = event.clientY - box.height - 12;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : event.clientY + 18}px`;
}
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
// A table that is cut fades where it goes on, and says so.
const cut = new ResizeObserver((entries) => { for (const entry of entries) fade(entry.target); });
function fade(box) {
  const across = box.scrollWidth - box.clientWidth, down = box.scrollHeight - box.clientHeight;
  const list = box.parentElement.classList;
  list.toggle("right", across - box.scrollLeft > 1);
  list.toggle("below", down - box.scrollTop > 1);
  list.toggle("scrolls", across > 1 || down > 1);
}
for (const box of document.querySelectorAll(".scroll")) {
  cut.observe(box);
  box.addEventListener("scroll", () => fade(box), { passive: true });
}
// A page that renews itself keeps unfolded what its reader has unfolded.
if ("live" in document.body.dataset) {
  const folds = [...document.querySelectorAll("details")], key = `open ${location.pathname}`;
  const open = () => folds.flatMap((fold, i) => (fold.open ? [i] : []));
  for (const i of JSON.parse(sessionStorage.getItem(key) ?? "[]")) if (folds[i]) folds[i].open = true;
  for (const fold of folds) fold.addEventListener("toggle", () => sessionStorage.setItem(key, JSON.stringify(open())));
}
// A column's head sorts its table; numbers with units by their size.
const sizes = { "": 1, "%": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
function amount(text) {
  const found = /^([+-]?[\d.,]+)\s*([A-Za-z%]*)/.exec(text);
  return found ? parseFloat(found[1].replaceAll(",", "")) * (sizes[found[2]] ?? 1) : NaN;
}
function sort(head) {
  const column = head.cellIndex, body = head.closest("table").tBodies[0];
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body.rows].map((row) => [row.cells[column].textContent.trim(), row]);
  rows.sort(([a], [b]) => {
    const x = amount(a), y = amount(b);
    const order = Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b, "en", { numeric: true }) : x - y;
    return down ? -order : order;
  });
  body.append(...rows.map(([, row]) => row));
}
for (const head of document.querySelectorAll("thead th")) {
  head.tabIndex = 0;
  head.addEventListener("click", () => sort(head));
  head.addEventListener("keydown", (event) => { 
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();  // a space would scroll
    sort(head);
  });
}
