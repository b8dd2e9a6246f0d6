// A search finds sections, and shows their words: Sphinx finds pages. SECTIONS holds the texts (conf.py writes them).
const MOST = 4;  // sections of one page

function excerpt(text, terms) {
  const places = terms.map((term) => text.search(term)).filter((place) => place >= 0);
  const from = Math.max(0, Math.min(...places) - 60);
  const whole = text.slice(from, from + 200).replace(/\s\S*$/, "");
  return places.length ? `${from ? whole.replace(/^\S*\s/, "… ") : whole} …` : null;
}

// What Sphinx has found on a page, as what stands in its sections: rows of [page, title, anchor, words, …].
function inSections([page, title, anchor, words, ...rest], terms) {
  const count = (text) => terms.filter((term) => term.test(text)).length;
  const sections = (SECTIONS[page] ?? []).filter(([id]) => !anchor || anchor === `#${id}`)
    .map(([id, heading, text]) => ({ id, heading, text, has: count(`${heading} ${text}`), named: count(heading) }));
  const most = Math.max(0, ...sections.map((section) => section.has));
  if (!most) return [[page, title, anchor, words, ...rest]];
  const best = sections.filter((section) => section.has === most).sort((one, other) => other.named - one.named);
  return best.slice(0, most === terms.length ? MOST : 1).map(({ id, heading, text }) => {
    const name = heading === title ? title : `${title} › ${heading}`;
    return [page, name, `#${id}`, excerpt(text, terms), ...rest];
  });
}

// Before Sphinx begins, which is at the same event.
addEventListener("DOMContentLoaded", () => {
  const search = Search._performSearch;
  Search._performSearch = (query, stems, excluded, words, ...rest) => {
    const asTyped = [...words];
    const terms = [...stems].map((stem, place) => new RegExp(`(?<![a-z0-9])(${stem}|${asTyped[place]})`, "i"));
    const best = search(query, stems, excluded, words, ...rest).reverse();  // Sphinx shows the last one first
    const rows = new Map();
    for (const row of best.flatMap((one) => inSections(one, terms))) {
      const address = row[0] + row[2];
      if (!rows.has(address)) rows.set(address, row);
    }
    return [...rows.values()].reverse();
  };
}, { capture: true });
