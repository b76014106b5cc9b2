"use strict";
// Without this script the page says the same; with it columns sort and points of curves show their values.

const NEAR = 40; // pixels from the mouse to the point that is shown
const tip = document.getElementById("tip");

// --- Tables ---

// Numbers before text, and what is empty last whichever way.
function compare(one, other, direction) {
  if (one === undefined || other === undefined) return (one === undefined) - (other === undefined);
  const a = Number(one), b = Number(other);
  const numbers = !Number.isNaN(a) && !Number.isNaN(b);
  if (numbers) return a === b ? 0 : direction * (a < b ? -1 : 1);
  return direction * one.localeCompare(other, "en", { numeric: true });
}

function sortTable(table, heading, direction) {
  const column = heading.cellIndex;
  const lines = [...table.tBodies].map((line) => ({ line, value: line.rows[0].cells[column].dataset.value }));
  lines.sort((a, b) => compare(a.value, b.value, direction));
  table.append(...lines.map(({ line }) => line));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
}

for (const table of document.querySelectorAll("table.lines")) {
  table.tHead.addEventListener("click", (event) => {
    const heading = event.target.closest("button")?.parentElement;
    if (!heading) return;
    const sorted = heading.getAttribute("aria-sort");
    const ascending = sorted ? sorted === "descending" : heading.dataset.first === "ascending";
    sortTable(table, heading, ascending ? 1 : -1);
  });
}

// On a phone the answer of a line stands beside its name: at the end of the row it would be off the screen.

function moveColumn(table, from, to) {
  const rows = [table.tHead.rows[0], ...[...table.tBodies].map((line) => line.rows[0])];
  for (const row of rows) {
    const cell = row.cells[from];
    cell.remove();
    row.insertBefore(cell, row.cells[to] ?? null);
  }
}

const phone = matchMedia("(max-width: 40rem)");

function placeAnswers() {
  for (const table of document.querySelectorAll("table.lines")) {
    const heading = table.querySelector("th[data-first=descending]");
    if (!heading) continue;
    table.dataset.answer ??= heading.cellIndex;
    moveColumn(table, heading.cellIndex, phone.matches ? 1 : Number(table.dataset.answer));
  }
}

placeAnswers();
phone.addEventListener("change", placeAnswers);

// --- Lines of a table: one stands out in the pictures, and opens for its details ---

// The line that is pointed at, or else those that are open.
function pick(line) {
  for (const part of document.querySelectorAll(".on")) part.classList.remove("on");
  for (const picture of document.querySelectorAll(".picking")) picture.classList.remove("picking");
  const open = [...document.querySelectorAll(".name[aria-expanded=true]")].map((name) => name.closest("tbody").dataset.line);
  for (const key of line ? [line] : open) {
    for (const part of document.querySelectorAll(`[data-line="${key}"]`)) {
      part.classList.add("on");
      part.closest("figure")?.querySelector(".frame").classList.add("picking");
    }
  }
}

for (const line of document.querySelectorAll("tbody[data-line]")) {
  const name = line.querySelector(".name"), details = line.querySelector(".details");
  details.hidden = true;
  name.setAttribute("aria-expanded", false);
  name.addEventListener("click", () => {
    details.hidden = !details.hidden;
    name.setAttribute("aria-expanded", !details.hidden);
    pick(null);
  });
  line.addEventListener("pointerenter", () => pick(line.dataset.line));
  line.addEventListener("pointerleave", () => pick(null));
  line.addEventListener("focusin", () => pick(line.dataset.line));
  line.addEventListener("focusout", () => pick(null));
}

// --- Values at the points of curves ---

function show(point) {
  hide();
  point.classList.add("shown");
  tip.textContent = point.getAttribute("aria-label");
  tip.hidden = false;
  place(point);
  pick(lineOf(point));
}

// Above the point where there is room, else below, and inside the window.
function place(point) {
  const at = point.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const right = document.documentElement.clientWidth - size.width - 8;
  const left = at.left + at.width / 2 - size.width / 2;
  const above = at.top - size.height - 8;
  tip.style.left = `${Math.max(8, Math.min(left, right))}px`;
  tip.style.top = `${above > 0 ? above : at.bottom + 8}px`;
}

function hide() {
  for (const point of document.querySelectorAll(".shown")) point.classList.remove("shown");
  tip.hidden = true;
}

function leave() {
  hide();
  pick(null);
}

const lineOf = (point) => point.closest("[data-line]").dataset.line;

const middle = (point) => {
  const box = point.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
};

function nearest(points, x, y) {
  let found = null, least = NEAR;
  for (const point of points) {
    const [a, b] = middle(point);
    const distance = Math.hypot(a - x, b - y);
    if (distance < least) [found, least] = [point, distance];
  }
  return found;
}

// The point to go to with an arrow key: along the line, or the next one above or below.
function neighbour(points, point, key) {
  const line = points.filter((other) => lineOf(other) === lineOf(point));
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (step) return line[line.indexOf(point) + step];
  const [x, y] = middle(point), sign = { ArrowUp: -1, ArrowDown: 1 }[key];
  const beyond = points.filter((other) => sign * (middle(other)[1] - y) > 0 && Math.abs(middle(other)[0] - x) < 2);
  return sign && beyond.sort((a, b) => sign * (middle(a)[1] - middle(b)[1]))[0];
}

for (const picture of document.querySelectorAll(".picture")) {
  const points = [...picture.querySelectorAll(".marker")];
  points[0].setAttribute("tabindex", 0); // one stop for the Tab key; arrow keys go on from there
  const find = (event) => {
    const point = nearest(points, event.clientX, event.clientY);
    if (point) show(point);
    else leave();
  };
  picture.addEventListener("pointermove", find);
  picture.addEventListener("pointerdown", find);
  picture.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
  picture.addEventListener("focusin", (event) => { if (event.target.matches(".marker")) show(event.target); });
  picture.addEventListener("focusout", leave);
  picture.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    const next = neighbour(points, event.target, event.key);
    if (!next) return;
    event.preventDefault();
    event.target.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
}

function follow() {
  const point = document.querySelector(".shown");
  if (point) place(point);
}
addEventListener("scroll", follow, { passive: true });
addEventListener("resize", follow);
