"""The page around the drawing: its style sheet, its script, and the places which `html.py` fills."""

from __future__ import annotations

from string import Template
from typing import Final

from vramcast.views.head import opening

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #5a5a5a; --paper: #ffffff; --faint: #d9d9d9; --shade: #000000;
  --alarm: #b00000; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececec; --soft: #b0b0b0; --paper: #16181b; --faint: #454a50; --shade: #ffffff; --alarm: #ff7a70; } }
body { margin: 1.5rem auto; max-width: 1180px; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.35rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 1.6rem; }
ul { list-style: none; padding: 0; } .summary { color: var(--soft); overflow-wrap: anywhere; }
.legend li { display: inline-block; margin-right: 1.1rem; white-space: nowrap; }
.chart { display: block; width: 100%; height: auto; } .chart:focus-visible { outline: 2px solid var(--soft); }
.chart text { font: 12px system-ui, sans-serif; fill: var(--ink); } .chart text.small { font-size: 10.5px; fill: var(--soft); }
.chart rect.optimizer { fill: var(--shade); fill-opacity: .11; } .chart rect.backward { fill: var(--shade); fill-opacity: .06; }
.chart rect.build, .chart rect.data, .chart rect.other { fill: var(--shade); fill-opacity: .03; }
.chart rect.forward { fill: none; }
.grid { stroke: var(--faint); stroke-width: .6; } .step { stroke: var(--soft); stroke-width: .8; }
.process { fill: none; stroke: var(--ink); stroke-width: 1.4; } .peak { fill: var(--ink); }
.card { stroke: var(--alarm); stroke-width: 1.6; stroke-dasharray: 7 4; } .chart text.cardname { fill: var(--alarm); }
.pointer { stroke: var(--ink); stroke-width: .8; stroke-dasharray: 2 2; visibility: hidden; }
.key { width: 20px; height: 12px; margin-right: .4rem; vertical-align: -1px; }
.bar { width: 120px; height: 10px; background: color-mix(in srgb, var(--faint) 35%, transparent); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--faint); white-space: nowrap; }
th[scope=row] { font-weight: normal; } td { font-variant-numeric: tabular-nums; } .total th, .total td { font-weight: 600; }
#said { min-height: 4.5em; margin: .3rem 0; color: var(--soft); white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.5 ui-monospace, monospace; }
"""

# The pointer, or the arrow keys when the drawing has the focus, choose a point; what it says goes below the drawing.
_SCRIPT: Final = """
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
    where.push(data.step[at] < 0 ? "before step 0" : "step " + data.step[at], data.phases[data.phase[at]]);
    if (data.module[at] >= 0) where.push(data.modules[data.module[at]]);
    if (data.op[at] >= 0) where.push(data.ops[data.op[at]]);
    const live = data.live.reduce((sum, sizes) => sum + sizes[at], 0);
    const parts = data.categories.map((name, i) => [name, data.live[i][at]]).filter(part => part[1] > 0);
    said.textContent = where.join(", ") + "\\n"
      + "live " + size(live) + ", reserved " + size(data.reserved[at]) + ", context " + size(data.context[at])
      + ", process " + size(data.reserved[at] + data.context[at]) + "\\n"
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
"""

PAGE: Final = Template(
    opening(STYLE, runs_scripts=True)
    + """<main>
<h1>$title</h1>
<ul class="summary">$summary</ul>
<svg id="chart" class="chart" viewBox="$view_box" role="img" aria-label="$label" tabindex="0">
$drawing
<line id="pointer" class="pointer" y1="10" y2="440"/>
</svg>
<ul class="legend" aria-label="Legend">$legend</ul>
<p id="said" role="status">Point at the drawing, or focus it and use the arrow keys.</p>
<h2>What the process holds</h2>
<div class="scroll"><table>
<thead><tr><th scope="col">category</th><th scope="col" colspan="2">at the live peak</th>
<th scope="col" colspan="2">at the process peak</th></tr></thead>
<tbody>
$breakdown
</tbody></table></div>
<h2>Largest blocks at the live peak</h2>
<div class="scroll"><table>
<thead><tr><th scope="col">bytes</th><th scope="col">blocks</th><th scope="col">category</th><th scope="col">module</th>
<th scope="col">operator</th></tr></thead>
<tbody>
$groups
</tbody></table></div>
</main>
<script type="application/json" id="data">$data</script>
<script>"""
    + _SCRIPT
    + """</script>
</body>
</html>
"""
)
