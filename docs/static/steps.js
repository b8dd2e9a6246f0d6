// A picture in steps, <figure class="steps"><svg>…<g class="step">…: shows one step, and gets buttons. It moves only when
// asked to, and one step at a time for those who want no motion. Without this script, the step it opens with is seen.
addEventListener("DOMContentLoaded", () => {
  for (const figure of document.querySelectorAll("figure.steps")) {
    const steps = [...figure.querySelectorAll(".step")], still = matchMedia("(prefers-reduced-motion: reduce)");
    let at = steps.findIndex(step => !step.style.display), timer;
    figure.insertAdjacentHTML("beforeend", `<figcaption><span role="group" aria-label="Steps"><button>Back</button>
      <button>Play</button> <button>Next</button></span> <span role="status"></span></figcaption>`);
    const [back, play, next] = figure.querySelectorAll("button"), says = figure.querySelector("[role=status]");
    const show = to => {
      at = (to + steps.length) % steps.length;
      steps.forEach((step, number) => step.style.display = number === at ? "" : "none");
      says.textContent = steps[at].querySelector("desc").textContent;
    };
    const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; says.ariaLive = "polite"; };
    back.onclick = () => { stop(); show(at - 1); };
    next.onclick = () => { stop(); show(at + 1); };
    play.onclick = () => {
      if (timer) return stop();
      if (still.matches) return show(at + 1);
      play.textContent = "Stop";
      says.ariaLive = "off";  // nobody can listen as quickly
      timer = setInterval(() => at === steps.length - 1 ? stop() : show(at + 1), steps.length > 10 ? 400 : 1200);
      show(at === steps.length - 1 ? 0 : at + 1);
    };
  }
});
