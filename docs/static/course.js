// What furo leaves out for those who read by keyboard or ear.
addEventListener("DOMContentLoaded", () => {
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
