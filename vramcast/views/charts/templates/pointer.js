/* The pointer, or the arrow keys when the drawing has the focus, choose a point; its description appears below the drawing. */
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const chart = document.getElementById("chart");
  const pointer = document.getElementById("pointer");
  const said = document.getElementById("said");
  if (data.row.length === 0) { said.textContent = "The trace allocates nothing."; return; }
  const size = bytes => bytes >= 2 ** 30 ? (bytes / 2 ** 30).toFixed(2) + " GiB" : (bytes / 2 ** 20).toFixed(1) + " MiB";
  let at = -1;
  function show(index) {
    at = Math.max(0, Math.min(index, data.row.length - 1));
    const x = data.left + data.row[at] / data.n * data.width;
    pointer.setAttribute("x1", x);
    pointer.setAttribute("x2", x);
    pointer.style.visibility = "visible";
    const where = ["row " + data.row[at].toLocaleString("en")];
    where.push(data.step[at] === 0 ? "before step 1" : "step " + data.step[at], data.phases[data.phase[at]]);
    if (data.module[at] >= 0) where.push(data.modules[data.module[at]]);
    if (data.op[at] >= 0) where.push(data.ops[data.op[at]]);
    const live = data.live.reduce((sum, sizes) => sum + sizes[at], 0);
    const parts = data.categories.map((name, i) => [name, data.live[i][at]]).filter(part => part[1] > 0);
    said.textContent = where.join(", ") + "\n"
      + "live " + size(live) + ", reserved " + size(data.reserved[at]) + ", context " + size(data.context[at])
      + ", process " + size(data.reserved[at] + data.context[at]) + "\n"
      + parts.map(part => part[0] + " " + size(part[1])).join(", ");
  }
  function nearest(row) {
    let low = 0, high = data.row.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (data.row[middle] <= row) low = middle; else high = middle - 1;
    }
    return low;
  }
  chart.addEventListener("pointermove", event => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    show(nearest((point.x - data.left) / data.width * data.n));
  });
  chart.addEventListener("keydown", event => {
    const by = {ArrowLeft: -1, ArrowRight: 1, PageUp: -50, PageDown: 50}[event.key];
    if (by !== undefined) { show(at + by); event.preventDefault(); }
  });
})();
