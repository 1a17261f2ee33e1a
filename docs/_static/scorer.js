// Search: guides before functions, so that "convolution" finds what explains it first.
var Scorer = {
  objNameMatch: 4,
  objPartialMatch: 2,
  objPrio: { 0: 2, 1: 1, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 12,
  term: 5,
  partialTerm: 2,
};
