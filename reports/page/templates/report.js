"use strict";
// Tables sort and copy, figures save themselves. Without scripts everything is readable:
// this only adds buttons.

function button(text, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// ---- Tables ----

function cellAt(row, column) {
  let place = 0;
  for (const cell of row.cells) {
    if (place === column) return cell;
    place += cell.colSpan;
    if (place > column) return null;
  }
  return null;
}

function keyOf(row, column) {
  const cell = cellAt(row, column);
  if (!cell) return "";
  if (cell.dataset.sort) return Number(cell.dataset.sort);
  const text = cell.textContent.trim();
  const number = text.replace(/[\s\u202f\u00a0]/g, "").match(/^-?\d+(\.\d+)?/);
  return number ? Number(number[0]) : text;
}

function compare(first, second) {
  if (typeof first === typeof second) {
    return typeof first === "number" ? first - second : first.localeCompare(second, "en");
  }
  return typeof first === "number" ? -1 : 1; // what has no number comes last
}

function sortBy(table, header, column) {
  const isUp = header.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", isUp ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [keyOf(row, column), row]);
  rows.sort(([a], [b]) => (typeof a === typeof b && !isUp ? compare(b, a) : compare(a, b)));
  for (const [, row] of rows) {
    row.classList.remove("group");
    body.append(row);
  }
}

// A figure, perhaps with its unit and interval; other text that begins like a formula is
// computed where it is pasted into a table.
const FIGURE = /^[+-]?\d[\d.,]*( ?%| [a-z/]+)?( \[[-+\d., ]*\])?$/i;

function tsvOf(table) {
  const textOf = (cell) => {
    const copy = cell.cloneNode(true);
    for (const extra of copy.querySelectorAll("details > :not(summary)")) extra.remove();
    const text = copy.textContent.replace(/\s+/g, " ").trim();
    return /^[=+@-]./.test(text) && !FIGURE.test(text) ? `'${text}` : text;
  };
  return [...table.rows]
    .map((row) =>
      [...row.cells].flatMap((cell) => [textOf(cell), ...Array(cell.colSpan - 1).fill("")])
        .join("\t"))
    .join("\n") + "\n";
}

async function copyTable(table, pressed) {
  const text = tsvOf(table);
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages opened from a file have no clipboard everywhere: select and copy instead.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  pressed.textContent = "Copied";
  setTimeout(() => { pressed.textContent = "Copy as TSV"; }, 2000);
}

for (const table of document.querySelectorAll(".scroll table")) {
  let column = 0;
  for (const header of table.tHead.rows[0].cells) {
    const at = column;
    column += header.colSpan;
    if (table.tBodies[0].rows.length > 1 && header.textContent.trim() && !header.querySelector("details")) {
      const sorter = button("", () => sortBy(table, header, at));
      sorter.append(...header.childNodes);
      header.append(sorter);
    }
  }
  const copy = button("Copy as TSV", () => copyTable(table, copy));
  copy.className = "copy";
  table.closest(".scroll").after(copy);
}

// ---- Figures ----

const PAINTED = ["fill", "stroke", "color"];
const NAMESPACE = ["http", "//www.w3.org/2000/svg"].join(":");

// A file has no style sheet of ours: every colour and font is written into the copy.
function standAlone(svg) {
  const copy = svg.cloneNode(true);
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const page = getComputedStyle(document.documentElement);
  const parts = [[svg, copy]];
  const [old, now] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
  old.forEach((element, index) => parts.push([element, now[index]]));
  for (const [element, target] of parts) {
    const style = getComputedStyle(element);
    for (const name of PAINTED) {
      if ((target.getAttribute("style") || "").includes("var(") || name === "color") {
        target.style.setProperty(name, style.getPropertyValue(name));
      }
    }
  }
  copy.setAttribute("xmlns", NAMESPACE);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.style.fontFamily = "sans-serif";
  copy.style.background = page.getPropertyValue("--paper");
  copy.style.removeProperty("max-width");
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function saveSvg(svg, name) {
  save(`${name}.svg`, new Blob([standAlone(svg).text], { type: "image/svg+xml" }));
}

function savePng(svg, name) {
  const { text, width, height } = standAlone(svg);
  const canvas = document.createElement("canvas");
  const scale = 3;
  canvas.width = scale * width;
  canvas.height = scale * height;
  const picture = new Image();
  picture.onload = () => {
    const context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--paper");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(`${name}.png`, blob), "image/png");
  };
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

function shownIn(figure) {
  return [...figure.querySelectorAll("svg[role=img]")].filter((svg) => svg.getClientRects().length);
}

function nameOf(figure, svg) {
  return `${figure.dataset.name}-${svg.getAttribute("aria-labelledby").split("-title")[0]}`;
}

for (const figure of document.querySelectorAll("figure.downloads")) {
  let files = figure.querySelector(".files");
  if (!files) {
    files = document.createElement("p");
    files.className = "files";
    figure.append(files);
  }
  for (const [label, act] of [["SVG", saveSvg], ["PNG", savePng]]) {
    files.append(button(`Save as ${label}`, () => {
      for (const svg of shownIn(figure)) act(svg, nameOf(figure, svg));
    }));
  }
}
