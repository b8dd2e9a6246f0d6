// A search finds sections, and shows their words: Sphinx finds pages. SECTIONS holds the texts (conf.py writes them).
const MOST = 4;  // sections of one page

function excerpt(text, terms) {
  const places = terms.map((term) => text.toLowerCase().indexOf(term)).filter((place) => place >= 0);
  const from = Math.max(0, Math.min(...places) - 60);
  const whole = text.slice(from, from + 200).replace(/\s\S*$/, "");
  return from ? `… ${whole.replace(/^\S*\s/, "")} …` : `${whole} …`;
}

// What Sphinx has found on a page as what stands in its sections: rows of [page, title, anchor, words, …].
function inSections([page, title, anchor, words, ...rest], terms) {
  const has = ([, heading, text]) => terms.every((term) => `${heading} ${text}`.toLowerCase().includes(term));
  const found = (SECTIONS[page] ?? []).filter((section) => (anchor ? `#${section[0]}` === anchor : has(section)));
  if (!found.length) return [[page, title, anchor, words, ...rest]];
  return found.slice(0, MOST).map(([id, heading, text]) => {
    const name = heading === title ? title : `${title} › ${heading}`;
    return [page, name, `#${id}`, has(["", "", text]) ? excerpt(text, terms) : null, ...rest];
  });
}

// Before Sphinx begins, which is at the same event.
addEventListener("DOMContentLoaded", () => {
  const search = Search._performSearch;
  Search._performSearch = (query, terms, ...rest) => {
    const best = search(query, terms, ...rest).reverse();  // Sphinx shows the last one first
    const rows = new Map();
    for (const row of best.flatMap((one) => inSections(one, [...terms]))) {
      const address = row[0] + row[2];
      if (!rows.has(address)) rows.set(address, row);
    }
    return [...rows.values()].reverse();
  };
}, { capture: true });
