// ---- Points of figures: what is pointed at, or reached by arrow keys, says its value ----

const NEAR = 26; // CSS pixels

const note = document.createElement("p");
note.className = "tip-note";
note.setAttribute("role", "status");
note.hidden = true;

function middleOf(point) {
  const box = point.getBoundingClientRect();
  return [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
}

function showTip(svg, point) {
  for (const other of svg.querySelectorAll(".tip.is-shown")) other.classList.remove("is-shown");
  note.hidden = !point;
  if (!point) return;
  point.classList.add("is-shown");
  note.textContent = point.dataset.tip;
  note.style.left = "0"; // its width must not depend on where it was
  const [x, y] = middleOf(point);
  const width = document.documentElement.clientWidth;
  const left = Math.min(Math.max(x - note.offsetWidth / 2, 8), width - note.offsetWidth - 8);
  const above = y - note.offsetHeight - 12;
  note.style.left = `${left + scrollX}px`;
  note.style.top = `${(above > 0 ? above : y + 14) + scrollY}px`;
}

function nearest(points, event) {
  let found = null;
  let least = NEAR;
  for (const point of points) {
    const [x, y] = middleOf(point);
    const distance = Math.hypot(x - event.clientX, y - event.clientY);
    if (distance < least) [found, least] = [point, distance];
  }
  return found;
}

document.querySelector("main").append(note);
for (const svg of document.querySelectorAll("figure svg[role=img]")) {
  const points = [...svg.querySelectorAll(".tip")];
  if (!points.length) continue;
  for (const point of points) {
    // The browser's own, later note would show beside ours.
    const title = point.querySelector("title");
    point.dataset.tip = title.textContent;
    title.remove();
  }
  svg.tabIndex = 0;
  for (const name of ["pointermove", "pointerdown"]) {
    svg.addEventListener(name, (event) => showTip(svg, nearest(points, event)));
  }
  svg.addEventListener("pointerleave", () => showTip(svg, null));
  svg.addEventListener("blur", () => showTip(svg, null));
  svg.addEventListener("focus", () => {
    if (svg.matches(":focus-visible")) showTip(svg, points[0]);
  });
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") showTip(svg, null);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = points.findIndex((point) => point.classList.contains("is-shown"));
    showTip(svg, points[(at + step + points.length) % points.length]);
  });
}
