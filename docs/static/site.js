/* What the theme's pages lack for keyboards and screen readers. */
"use strict";

addEventListener("load", () => {
  // A table that scrolls sideways takes the focus, so that arrow keys scroll it.
  for (const table of document.querySelectorAll(".table-wrapper")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
  }
  // The arguments of a long signature are no list of definitions.
  for (const part of document.querySelectorAll("dt.sig > dl, dt.sig > dl > dd")) part.setAttribute("role", "none");
});
