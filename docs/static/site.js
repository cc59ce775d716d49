/* A table that scrolls sideways takes the focus, so that arrow keys scroll it. */
"use strict";

addEventListener("load", () => {
  for (const table of document.querySelectorAll(".table-wrapper")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
  }
});
