// Filters and sorts the list of studies. Without it the whole list is shown.
(() => {
  const form = document.querySelector("form.filter");
  const list = document.querySelector("ol.studies");
  const count = form.querySelector("output");
  const items = [...list.children];

  // Numbers descend, so that the newest and the best come first; names ascend.
  const orders = {
    date: (a, b) => b.dataset.date.localeCompare(a.dataset.date),
    efficiency: (a, b) => b.dataset.efficiency - a.dataset.efficiency,
    name: (a, b) => a.dataset.name.localeCompare(b.dataset.name),
  };

  const matches = (item, name) => {
    const wanted = form.elements[name].value;
    return !wanted || JSON.parse(item.dataset[name]).includes(wanted);
  };

  const update = () => {
    let shown = 0;
    for (const item of items) {
      item.hidden = !["workload", "backend", "machine"].every((name) => matches(item, name));
      shown += !item.hidden;
    }
    // Array.prototype.sort is stable: what is equal stays as it was built.
    list.append(...[...items].sort(orders[form.elements.order.value]));
    count.textContent = `${shown} of ${items.length} studies`;
  };

  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  update();
})();
