// Filters the studies, and shows two that are ticked side by side.
(() => {
  const table = document.querySelector("table.studies");
  const form = document.querySelector("form.filter");
  const panel = document.querySelector(".compare");
  const addresses = JSON.parse(panel.dataset.addresses);
  const rows = [...table.tBodies[0].rows];
  const studies = rows.filter((row) => !row.classList.contains("more"));

  const filter = () => {
    const words = form.elements.words.value.toLowerCase().split(/\s+/);
    const isShown = (row) => words.every((word) => row.textContent.toLowerCase().includes(word));
    for (const row of rows) row.hidden = !isShown(row);
    const shown = studies.filter((row) => !row.hidden).length;
    form.querySelector("output").textContent = `${shown} of ${studies.length} studies`;
  };

  const show = () => {
    const chosen = studies.filter((row) => row.querySelector("input").checked);
    panel.replaceChildren();
    if (chosen.length !== 2) return;
    const made = panel.appendChild(document.createElement("table"));
    made.createCaption().textContent = "Two studies side by side";
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    heads.forEach((head, column) => {
      const row = made.insertRow();
      const name = row.appendChild(document.createElement("th"));
      name.scope = "row";
      name.textContent = head;
      for (const study of chosen) {
        const cell = row.appendChild(document.createElement("td"));
        for (const node of study.cells[column].childNodes) {
          if (node.nodeName !== "INPUT") cell.append(node.cloneNode(true));
        }
      }
    });
    const names = chosen.map((row) => row.dataset.name);
    const address = addresses[names.join("\n")] || addresses[names.reverse().join("\n")];
    const said = panel.appendChild(document.createElement("p"));
    if (address) {
      const link = said.appendChild(document.createElement("a"));
      link.href = address;
      link.textContent = "Their ratios, case by case";
    } else {
      said.textContent = "Their ratios: python -m harness report A B, where A and B are their folders.";
    }
  };

  for (const row of studies) {
    const box = document.createElement("input");
    box.type = "checkbox";
    box.ariaLabel = `Compare ${row.dataset.name}`;
    box.addEventListener("change", () => {
      const ticked = studies.filter((other) => other.querySelector("input").checked);
      for (const other of ticked.filter((of) => of !== row).slice(1)) {
        other.querySelector("input").checked = false;
      }
      show();
    });
    row.cells[0].prepend(box);
  }
  for (const hidden of document.querySelectorAll("form.filter, .scripted")) hidden.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
})();
