// Sphinx's own weights; but a page or section comes first whose title holds the whole query.
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => (kind === "title" ? 10 * score : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
