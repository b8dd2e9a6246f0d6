// The reading edition: bets without a kernel, and what furo leaves out for those who read by keyboard or ear.
const unkept = {};  // bets, where the browser keeps nothing

function betOn(key) {
  try {
    return localStorage.getItem(`bet ${key}`) ?? unkept[key];
  } catch {
    return unkept[key];
  }
}

function keepBet(key, option) {
  unkept[key] = option;
  try {
    localStorage.setItem(`bet ${key}`, option);
  } catch { /* it is kept as long as the page is open */ }
}

function withCode(words) {
  return words.replace(/[&<>]/g, (sign) => `&#${sign.charCodeAt()};`).replace(/`([^`]+)`/g, "<code>$1</code>");
}

// Makes buttons of a question's options. The cell that answers it shows the bet, and the verdict below its result.
function playBet(question) {
  const key = question.dataset.key, where = question.querySelector(".where");
  const yours = document.querySelector(`.your-bet[data-key="${key}"]`), fold = yours.closest("details");
  const verdict = document.querySelector(`.verdict[data-key="${key}"]`), withoutBet = verdict.innerHTML;
  const verdicts = JSON.parse(document.querySelector(`[data-verdicts="${key}"]`).textContent);
  fold.id = `answer-${key}`;

  function show() {
    const option = betOn(key), isBet = option in verdicts;  // it may be an option of an older course
    for (const button of question.querySelectorAll("button"))
      button.setAttribute("aria-pressed", isBet && button.parentNode.dataset.option === option);
    where.innerHTML = !isBet ? "Click an option: it is your bet." : `Your bet: <strong>${withCode(option)}</strong>. `
      + `The answer stands <a href="#${fold.id}">below, in the fold</a>.`;
    yours.innerHTML = isBet ? `Your bet: <strong>${withCode(option)}</strong>`
      : `You have not bet yet: <a href="#${question.id}">bet first</a>.`;
    verdict.innerHTML = isBet ? verdicts[option] : withoutBet;
  }

  for (const item of question.querySelectorAll("li")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...item.childNodes);
    button.onclick = () => { keepBet(key, item.dataset.option); show(); };
    item.append(button);
  }
  show();
}

addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".bet").forEach(playBet);
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches)
    document.querySelector(".plays .moves button")?.click();

  for (const box of document.querySelectorAll("pre, .table-wrapper, .cell_output"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;  // or only a mouse could scroll it
  for (const heading of document.querySelectorAll("th"))
    if (!heading.innerText.trim()) heading.setAttribute("role", "presentation");
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
  for (const summary of document.querySelectorAll(".hide > summary")) summary.removeAttribute("aria-label");  // its words say more
  for (const [side, name] of [[".sidebar-drawer", "All pages"], [".toc-drawer", "This page"]])
    document.querySelector(side)?.setAttribute("aria-label", name);
  if (!document.querySelector("h1"))
    document.querySelector("article")?.insertAdjacentHTML("afterbegin", "<h1>Search</h1>");
});
