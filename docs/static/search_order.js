/* The order of search results: matches of a title count more; guides come first, lists and tables of measurements last. */
"use strict";

var Scorer = {
  score: ([page, , , , score, , kind]) => {
    if (kind === "title") score += 10;
    if (page === "guides/faq") return score + 7; // a guide of its own says more
    if (page.startsWith("guides/") || page === "start") return score + 8;
    if (/^(reference|notebooks|accuracy-tables|scripts|survey)/.test(page)) return score - 4;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
