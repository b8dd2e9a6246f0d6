// What some learners need and JupyterLab 4.6 leaves out. It shows a picture without the text alternative that is stored
// with it (jupyter/enhancement-proposals#120); it runs no script of a notebook that came from elsewhere, so that a stored
// explorer would not play; an arrow key in a menu of ipywidgets 8.1 goes to the next cell; a notebook that was saved and
// is opened again shows an error in the place of each widget, whose kernel is gone, and not what is stored beside it; it
// tells widgets that their kernel was restarted, and not that it died and another one took its place, or none;
// and comments in code are too dark on the dark theme. This is all of the extension: it is loaded as it stands, beside
// the stage of helpers/widgets, and nothing builds it.
{
  const HERE = document.currentScript.src;
  const KEYS_LOST = ".widget-dropdown select:not([data-lm-suppress-shortcuts])";
  const WIDGET = "application/vnd.jupyter.widget-view+json";
  const LOST = "Error displaying widget: model not found";
  const GONE = "jupyter-widgets-disconnected";
  const DEAD = ["autorestarting", "terminating", "dead"];
  const COMMENTS = "[data-jp-theme-light=false] .jp-Notebook {--jp-mirror-editor-comment-color: #68a8a8}";
  let shared;

  // A factory whose renderers are mended each time they have shown something, by `mend(node, model, mimeType)`.
  function mended(factory, mend) {
    return {
      ...factory,
      createRenderer(options) {
        const renderer = factory.createRenderer(options);
        const render = renderer.renderModel.bind(renderer);
        renderer.renderModel = async (model, ...more) => {
          await render(model, ...more);
          await mend(renderer.node, model, options.mimeType);
        };
        return renderer;
      },
    };
  }

  function addAlt(node, model, mimeType) {
    const image = node.querySelector("img");
    if (image && !image.alt) image.alt = model.metadata?.[mimeType]?.alt ?? "A picture without a description";
  }

  // A stored explorer plays, by our own script: of the notebook's, only the data are read. What stands beside it stays.
  async function playStage(node, model, mimeType) {
    const html = [model.data[mimeType]].flat().join("");
    if (!html.includes("stage-stored")) return;
    const place = node.querySelector(".stage-stored") ?? node;
    if (place.classList.contains("stage")) return;  // a trusted notebook's own script was here first
    place.classList.add("stage");
    const page = new DOMParser().parseFromString(html, "text/html");
    const {default: {mount}} = await import(new URL("stage.js", HERE));
    place.replaceChildren();
    mount(place, JSON.parse(page.querySelector(".stage-stored script").textContent));
  }

  function mendMenus() {
    for (const menu of document.querySelectorAll(KEYS_LOST)) menu.setAttribute("data-lm-suppress-shortcuts", "true");
  }

  function showWhatIsStored(notebooks) {
    const lost = [...document.querySelectorAll(".jp-OutputArea-output.jupyter-widgets")]
      .filter((node) => node.textContent === LOST);
    if (!lost.length) return;
    notebooks.forEach(({content}) => {
      for (const {outputArea} of content.widgets) {
        for (const [number, {node}] of (outputArea?.widgets ?? []).entries()) {
          if (!lost.some((one) => node.contains(one))) continue;
          const {data: {[WIDGET]: _, ...data}, ...output} = outputArea.model.get(number).toJSON();
          outputArea.model.set(number, {...output, data});
        }
      }
    });
  }

  // Widgets whose kernel died, was shut down or exchanged look as ipywidgets lets them look after a restart.
  function tellWidgets(panel) {
    const tell = () => {
      for (const node of panel.node.querySelectorAll(".jupyter-widgets")) node.classList.add(GONE);
    };
    panel.sessionContext.statusChanged.connect((_, status) => DEAD.includes(status) && tell());
    panel.sessionContext.kernelChanged.connect((_, {oldValue}) => oldValue && tell());
  }

  function activate(_app, registry, notebooks) {
    document.head.append(Object.assign(document.createElement("style"), {textContent: COMMENTS}));
    const style = {rel: "stylesheet", href: new URL("stage.css", HERE)};
    document.head.append(Object.assign(document.createElement("link"), style));
    let waits = false;
    new MutationObserver(() => {
      if (waits) return;  // many changes, one look
      waits = true;
      requestAnimationFrame(() => { waits = false; mendMenus(); showWhatIsStored(notebooks); });
    }).observe(document.body, {childList: true, subtree: true});
    notebooks.forEach(tellWidgets);
    notebooks.widgetAdded.connect((_, panel) => tellWidgets(panel));
    for (const [kind, mend] of [["image/png", addAlt], ["text/html", playStage]]) {
      registry.addFactory(mended(registry.getFactory(kind), mend));
    }
  }

  (window._JUPYTERLAB ??= {})["parallel-pytorch-course"] = {
    init: (scope) => { shared = scope; },
    get: async () => {
      const ofJupyterLab = async (name) => {
        const versions = Object.values(shared[name]);
        return (await (versions.find((one) => one.loaded) ?? versions[0]).get())();
      };
      const {IRenderMimeRegistry} = await ofJupyterLab("@jupyterlab/rendermime");
      const {INotebookTracker} = await ofJupyterLab("@jupyterlab/notebook");
      const requires = [IRenderMimeRegistry, INotebookTracker];
      return () => ({id: "parallel-pytorch-course:mends", autoStart: true, requires, activate});
    },
  };
}
