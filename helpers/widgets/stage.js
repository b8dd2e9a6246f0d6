// The stage: draws the frames of named shapes that stage.py computes, and moves the shapes from frame to frame.
// It knows nothing of any lesson. `mount` plays a story, with a kernel that is asked for more, or without one.

const SVG = "http://www.w3.org/2000/svg";
const HATCHES = { "///": "M0 8 8 0", "...": "M2 2h2M6 6h2", "xx": "M0 0 8 8M0 8 8 0" };
const PATIENCE = 3000;  // ms until a kernel that does not answer is mentioned
const ASLEEP = "This needs Python: it changes once the kernel is free. If nothing runs, run this cell to change it.";
let stages = 0;

function make(tag, attributes = {}, parent = null) {
  const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else node.setAttribute(name, value);
  }
  parent?.append(node);
  return node;
}

function button(words, press, parent) {
  const node = make("button", { type: "button", text: words }, parent);
  node.onclick = press;
  return node;
}

// What is stored of a frame is what differs from the frame before; of the first one, from what scenes share. Puts
// a Map of all its shapes, by name, for each.
function unpack(scene, shared = {}) {
  let shapes = new Map(Object.entries(shared));
  scene.full = scene.frames.map((frame) => {
    shapes = new Map(shapes);
    for (const name of frame.gone ?? []) shapes.delete(name);
    for (const [name, change] of Object.entries(frame.set)) shapes.set(name, { ...shapes.get(name), ...change });
    return shapes;
  });
  return scene;
}

// Round numbers from `begin` to `end`, as `ticks` in shapes.py finds them.
function ticks(begin, end, most = 6) {
  const factors = [2, 2.5, 2];
  let step = 1e-9;
  for (let number = 0; (end - begin) / step > most; number++) step *= factors[number % 3];
  const found = [];
  for (let number = Math.ceil(begin / step); number * step <= end + 1e-9; number++) found.push(+(number * step).toPrecision(10));
  return found;
}

// As much of a name as there is room for, in letters of the mean width.
function cut(name, room) {
  const letters = (text) => text.length + 0.65 * (text.match(/[mwMW…]/g)?.length ?? 0);
  if (letters(name) <= room) return name;
  if (room < 4) return "";
  let part = name.slice(0, room);
  while (letters(`${part}…`) > room) part = part.slice(0, -1);
  return `${part}…`;
}

// The picture: an <svg> that shows one frame of a scene. `act` hears what a reader does to shapes.
function picture(figure, act) {
  const id = `stage-${stages++}`;
  const svg = make("svg:svg", { role: "group" }, figure);
  const defs = make("svg:defs", {}, svg);
  Object.entries(HATCHES).forEach(([hatch, lines], number) => {
    const pattern = make("svg:pattern", { id: `${id}-${number}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, defs);
    make("svg:path", { d: lines, class: "hatch" }, pattern);
  });
  const head = make("svg:marker", { id: `${id}-head`, markerWidth: 4, markerHeight: 4, refX: 2, refY: 2, orient: "auto" }, defs);
  make("svg:path", { d: "M0 0 4 2 0 4z", fill: "context-stroke" }, head);
  const scale = make("svg:g", { class: "axis" }, svg);
  const layers = { "-1": make("svg:g", {}, svg), 0: make("svg:g", {}, svg), 1: make("svg:g", {}, svg) };
  const tip = make("div", { class: "tip", hidden: "" }, figure);
  const groups = new Map();  // by the shape's name: its <g>
  const timers = new Map();  // what happens once what glides has arrived
  let scene = null, shapes = new Map(), view = null, focused = null;

  // Where a shape of the axis is while a part of the axis is shown: {x, w}, or nothing where it is out of sight.
  function placed(shape) {
    const { x, w = 0 } = shape, axis = scene.axis;
    if (!shape.lane || !axis?.zoom) return { x, w };
    // However short a bar is, it can be seen; and a gap tells it from its neighbour.
    const apart = (wide) => (wide > 5 ? wide - 1 : Math.max(wide, 1));
    if (!view) return { x, w: apart(w) };
    const whole = axis.to - axis.from;
    const larger = whole / (view[1] - view[0]), shift = (view[0] - axis.from) / whole * axis.w;
    const left = axis.x + (x - axis.x - shift) * larger, right = left + w * larger;
    const from = Math.max(left, axis.x), to = Math.min(right, axis.x + axis.w);
    return to >= from ? { x: from, w: apart(to - from) } : null;
  }

  function draw(shape, group) {
    const at = placed(shape);
    group.style.display = at ? "" : "none";
    if (!at) return;
    group.style.transform = `translate(${at.x}px, ${shape.y}px)`;
    group.style.opacity = shape.opacity ?? 1;
    const parts = { rect: shape.w != null, over: shape.hatch != null, path: shape.points != null, text: shape.text != null };
    for (const [part, isWanted] of Object.entries(parts)) {
      const there = group.querySelector(`.${part}`);
      if (isWanted && !there) make(`svg:${part === "over" ? "rect" : part}`, { class: part }, group);
      else if (!isWanted) there?.remove();
    }
    const [rect, over, line, text] = Object.keys(parts).map((part) => group.querySelector(`.${part}`));
    if (rect) drawBox(shape, at.w, rect, over);
    if (line) drawLine(shape, line);
    if (text) {
      group.append(text);  // above a box that is new
      write(shape, text, at.w);
    }
    describe(shape, group);
  }

  function drawBox(shape, wide, rect, over) {
    for (const one of over ? [rect, over] : [rect]) {
      Object.assign(one.style, { width: `${wide}px`, height: `${shape.h}px` });
      one.setAttribute("rx", shape.round ?? Math.min(3, wide / 5));
    }
    const edge = { stroke: shape.line ?? (shape.fill ? "none" : ""), strokeWidth: shape.width ?? 1, strokeDasharray: shape.dash ? "5 4" : "" };
    Object.assign(rect.style, { fill: shape.fill ?? "", ...edge });
    if (over) over.style.fill = `url(#${id}-${Object.keys(HATCHES).indexOf(shape.hatch)})`;
  }

  function drawLine(shape, line) {
    const way = shape.points.length ? `M${shape.points.map((point) => point.join(" ")).join("L")}` : "";
    line.setAttribute("d", way);
    Object.assign(line.style, {
      d: `path("${way}")`,  // where a browser knows it, a line glides, too
      stroke: shape.line ?? "", fill: shape.fill ?? "", strokeWidth: shape.width ?? 1,
      strokeDasharray: shape.dash ? "5 4" : "", markerEnd: shape.arrow ? `url(#${id}-head)` : "",
    });
  }

  // What a shape is for the mouse, for keys, and for those who listen.
  function describe(shape, group) {
    const looks = ["shape", shape.click || shape.drag ? "acts" : "", shape.passes ? "passes" : "", shape.drag ? "drags" : ""];
    group.setAttribute("class", looks.filter(Boolean).join(" "));
    if (!shape.click && !shape.drag && !shape.tip) {
      for (const name of ["role", "aria-label", "tabindex"]) group.removeAttribute(name);
      return;
    }
    // What has the focus keeps its tabindex: without one it would lose the focus.
    group.setAttribute("role", shape.drag ? "slider" : shape.click ? "button" : "img");
    group.setAttribute("aria-label", [shape.text, shape.tip].filter(Boolean).join(": "));
    if (!shape.drag) return;
    const { control, places, texts } = shape.drag, at = whichPlace(shape);
    const slider = { tabindex: 0, "aria-valuemin": 0, "aria-valuemax": places.length - 1, "aria-valuenow": at,
      "aria-valuetext": texts ? `${at + 1} of ${places.length}` : act.label(control) };
    for (const [name, value] of Object.entries(slider)) group.setAttribute(name, value);
  }

  // The number of the place at which a shape is that can be dragged.
  const nearest = (places, x, y) => {
    const away = places.map((place) => Math.hypot(place[0] - x, place[1] - y));
    return away.indexOf(Math.min(...away));
  };
  const whichPlace = ({ drag, x, y }) => (drag.texts ? nearest(drag.places, x, y) : act.position(drag.control));
  const dragTo = ({ control, places, texts }, place) => {
    if (texts) act.put(control, texts[Math.max(0, Math.min(place, places.length - 1))]);
    else act.set(control, place);
  };

  // Moves a bar as the axis moves; all else stays.
  function slide(shape, group) {
    const at = placed(shape);
    if (!at || !group.firstChild) return draw(shape, group);
    group.style.display = "";
    group.style.transform = `translate(${at.x}px, ${shape.y}px)`;
    for (const part of group.children) {
      if (part.tagName === "text") write(shape, part, at.w);
      else {
        part.style.width = `${at.w}px`;
        part.setAttribute("rx", shape.round ?? Math.min(3, at.w / 5));
      }
    }
  }

  function write(shape, node, wide) {
    const size = shape.size ?? (shape.lane ? 13 : 16), align = shape.align ?? "middle", isBox = shape.w != null;
    let lines = `${shape.text}`.split("\n");
    const room = Math.floor((wide - 4) / (0.58 * size));
    if (shape.lane) lines = lines.map((line) => cut(line, room));
    if (!node.firstChild && !lines.some(Boolean)) return;  // most bars are too short for words
    const x = { start: isBox ? 5 : 0, middle: wide / 2, end: isBox ? wide - 5 : 0 }[align];
    node.replaceChildren(...lines.map((line, number) => {
      const y = (shape.h ?? 0) / 2 + 1.25 * size * (number - (lines.length - 1) / 2);
      return make("svg:tspan", { x, y, text: line });
    }));
    Object.assign(node.style, {
      fontSize: `${size}px`, fontWeight: shape.bold ? 700 : "", fill: shape.ink ?? "", textAnchor: align,
      stroke: shape.hatch ? shape.fill : "",  // a hatch does not run through the letters
    });
  }

  function drawAxis() {
    scale.replaceChildren();
    const axis = scene.axis;
    if (!axis) return;
    const [begin, end] = view ?? [axis.from, axis.to];
    for (const tick of ticks(begin, end)) {
      const x = axis.x + axis.w * (tick - begin) / (end - begin);
      make("svg:path", { d: `M${x} ${axis.top}V${axis.bottom}` }, scale);
      const half = 4 * `${tick}`.length, inside = Math.max(half, Math.min(x, scene.size[0] - half));
      make("svg:text", { x: inside, y: axis.bottom + 12, text: tick }, scale);
    }
    const part = view ? `${+(end - begin).toPrecision(3)} of ${+(axis.to - axis.from).toPrecision(3)} ` : "";
    make("svg:text", { x: axis.x + axis.w, y: axis.bottom + 30, text: part + axis.unit, class: "unit" }, scale);
  }

  // Of all that can be clicked or says something, one has a place in the order of the Tab key; arrows go to the others.
  function roam() {
    const isThere = (group) => group?.matches("[role]:not(.drags)") && group.style.display !== "none";
    const all = [...shapes.keys()].map((name) => groups.get(name)).filter(isThere);
    for (const group of svg.querySelectorAll("g.shape[tabindex='0']:not(.drags)")) group.setAttribute("tabindex", -1);
    if (!all.includes(focused)) focused = all.find((group) => group.classList.contains("acts")) ?? all[0];
    for (const group of all) group.setAttribute("tabindex", group === focused ? 0 : -1);
    return all;
  }

  function show(next, number, jump) {
    for (const [timer, what] of timers) { clearTimeout(timer); what(); }  // this frame comes before that
    timers.clear();
    const changed = next !== scene;
    scene = next;
    const before = shapes;
    shapes = scene.full[number];
    const pace = scene.pace ?? 1000, glide = scene.flows ? pace : Math.min(650, 0.7 * pace);
    svg.style.setProperty("--glide", jump ? "0ms" : `${glide}ms`);
    svg.style.setProperty("--way", scene.flows ? "linear" : "ease-in-out");
    svg.setAttribute("viewBox", `0 0 ${scene.size.join(" ")}`);
    svg.style.setProperty("--shape", scene.size[0] / scene.size[1]);
    svg.setAttribute("aria-label", scene.frames[number].alt ?? scene.frames[number].title);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    for (const [name, group] of groups) {
      if (!shapes.has(name)) { group.remove(); groups.delete(name); }
    }
    for (const [name, shape] of shapes) {
      let group = groups.get(name);
      if (group && before.get(name) === shape && !changed) continue;
      if (!group) {
        if (shape.passes && (still || jump)) continue;
        group = make("svg:g", { "data-name": name }, layers[shape.layer ?? 0]);
        groups.set(name, group);
        if (!jump) {
          draw({ ...shape, ...(shape.from ?? { opacity: 0 }) }, group);
          group.getBoundingClientRect();  // so that it glides from there
        }
      } else if (shape.late && !still && !jump) {
        after(glide, () => draw(shape, group));
        continue;
      }
      draw(shape, group);
      if (shape.passes) after(glide, () => { group.remove(); groups.delete(name); });
    }
    if (changed) drawAxis();
    roam();
  }

  function after(wait, what) {
    const timer = setTimeout(() => { timers.delete(timer); what(); }, wait);
    timers.set(timer, what);
  }

  // Show a part of the axis, [from, to]; or all of it.
  function look(part) {
    if (`${part}` === `${view}`) return;
    view = part;
    if (!scene) return;
    svg.style.setProperty("--glide", "0ms");
    for (const [name, shape] of shapes) if (shape.lane) slide(shape, groups.get(name));
    drawAxis();
    roam();
  }

  const shapeAt = (event) => {
    const group = event.target.closest?.("g.shape");
    return group ? [shapes.get(group.dataset.name), group] : [null, null];
  };
  const point = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());

  function tell(shape, group) {
    tip.hidden = !shape?.tip || svg.classList.contains("dragged");
    if (tip.hidden) return;
    tip.textContent = shape.lane && shape.text ? `${shape.text}: ${shape.tip}` : shape.tip;  // a bar's name may be cut
    const around = figure.getBoundingClientRect(), box = group.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(box.left - around.left, around.width - tip.offsetWidth))}px`;
    tip.style.top = `${box.bottom - around.top + 4}px`;
  }
  svg.addEventListener("pointerover", (event) => tell(...shapeAt(event)));
  svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && tell());
  svg.addEventListener("focusin", (event) => tell(...shapeAt(event)));
  svg.addEventListener("focusout", () => tell());
  svg.addEventListener("click", (event) => {
    const [shape, group] = shapeAt(event);
    if (shape?.click) { focused = group; act.click(shape.click); }
  });

  // Dragging: a shape to the place that stands for another value of its control; or the axis along.
  svg.addEventListener("pointerdown", (event) => {
    const [shape] = shapeAt(event), axis = scene.axis;
    if (!shape?.drag && !axis?.zoom) return;
    event.preventDefault();
    const began = point(event), [from, to] = view ?? [axis?.from, axis?.to];
    const [left, top] = shape?.drag ? shape.drag.places[whichPlace(shape)] : [];
    let moved = false;
    const move = (now) => {
      const here = point(now);
      if (shape?.drag) {
        dragTo(shape.drag, nearest(shape.drag.places, left + here.x - began.x, top + here.y - began.y));
      } else if (moved ||= Math.abs(here.x - began.x) > 3) {
        const by = (began.x - here.x) / axis.w * (to - from);
        act.look(from + by, to + by);
      }
    };
    const end = () => { removeEventListener("pointermove", move); svg.classList.remove("dragged"); };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end, { once: true });
    addEventListener("pointercancel", end, { once: true });
    svg.classList.add("dragged");
    tip.hidden = true;
  });
  svg.addEventListener("wheel", (event) => {
    const axis = scene.axis;
    if (!axis?.zoom || !(event.ctrlKey || event.metaKey)) return;  // the page scrolls
    event.preventDefault();
    const share = Math.min(1, Math.max(0, (point(event).x - axis.x) / axis.w));
    act.zoom(Math.exp(-event.deltaY / 300), share);
  }, { passive: false });
  svg.addEventListener("dblclick", (event) => scene.axis?.zoom && act.zoom(2, (point(event).x - scene.axis.x) / scene.axis.w));

  svg.addEventListener("keydown", (event) => {
    const [shape, group] = shapeAt(event);
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (shape?.drag && by) dragTo(shape.drag, whichPlace(shape) + by);
    else if (shape?.click && (event.key === "Enter" || event.key === " ")) { focused = group; act.click(shape.click); }
    else if (shape && by) {
      const all = roam();
      focused = all[(all.indexOf(group) + by + all.length) % all.length];
      roam();
      focused.focus();
    } else return;
    event.preventDefault();
  });

  return { show, look, get view() { return view; } };
}

// A story on a page. `ask(setting)` asks a kernel for a scene; null where there is none. Returns {answer, stop}.
function mount(place, story, ask = null) {
  place.classList.add("stage");
  // JupyterLab would take the arrow keys of whatever has the focus here.
  place.addEventListener("focusin", (event) => event.target.setAttribute("data-lm-suppress-shortcuts", "true"));
  const page = make("div", { class: "page" }, place);
  const top = make("div", { class: "ask" }, page);
  const said = make("div", { class: "said", role: "status" }, page);
  const figure = make("figure", {}, page);
  const moves = make("div", { class: "moves" }, page);
  const side = make("div", { class: "controls" }, page);
  const title = make("p", { class: "title" }, said), note = make("p", { class: "note" }, said);
  const part = story.controls.findIndex((control) => control.kind === "window");  // its place in a setting
  const whole = (setting) => (part < 0 ? setting : setting.with(part, null));
  const first = JSON.stringify(whole(story.first)), shared = story.shared ?? story.scenes[first].frames[0].set;
  const scenes = {};
  for (const [key, scene] of Object.entries(story.scenes)) scenes[key] = unpack(scene, key === first ? {} : shared);
  const number = Object.fromEntries(story.controls.map((control, place) => [control.name, place]));
  const puts = [];  // functions that make the controls show the setting
  let setting = [...story.first], scene = null, now = 0, playing = null, waiting = null;

  const stage = picture(figure, {
    click: (change) => changeTo(setting.map((position, place) => {
      if (change[place] == null) return position;
      return story.controls[place].kind === "clicks" ? [change[place], now] : change[place];
    })),
    position: (control) => (control === "moment" ? now : setting[number[control]]),
    label(control) {
      const place = number[control];
      return control === "moment" ? scene.frames[now].title : story.controls[place].labels[setting[place]];
    },
    set(control, position) {
      if (control === "moment") {
        stop();
        return show(Math.max(0, position), true);  // it follows the hand
      }
      const place = number[control], last = story.controls[place].labels.length - 1;
      const wanted = Math.max(0, Math.min(position, last));
      if (wanted !== setting[place]) changeTo(setting.with(place, wanted));
    },
    put(control, value) {
      if (value !== setting[number[control]]) changeTo(setting.with(number[control], value));
    },
    look: (from, to) => look(from, to),
    zoom(larger, share) {
      const [from, to] = stage.view ?? [scene.axis.from, scene.axis.to];
      const at = from + share * (to - from), span = (to - from) / larger;
      look(at - share * span, at + (1 - share) * span);
    },
  });

  function show(frame, jump = false) {
    const last = scene.frames.length - 1;
    now = Math.max(0, Math.min(frame < 0 ? last + 1 + frame : frame, last));
    stage.show(scene, now, jump);
    title.textContent = scene.frames[now].title;
    note.textContent = scene.frames[now].note ?? "";
    time.max = last;
    time.value = now;
    time.setAttribute("aria-valuetext", title.textContent);
    moves.classList.toggle("single", last === 0);
  }

  // Show the scene of the setting, if it is here; otherwise ask for it, and go on showing the one before. Returns
  // whether it is here.
  function put(frame, jump) {
    hint.textContent = "";
    clearTimeout(waiting);
    const wanted = JSON.stringify(setting), there = scenes[wanted] ?? scenes[JSON.stringify(whole(setting))];
    figure.setAttribute("aria-busy", !there && ask !== null);  // the style dims a picture that is to change
    if (there) {
      const isAtEnd = scene && scene.frames.length > 1 && now === scene.frames.length - 1;
      scene = there;
      if (scene.means) {
        setting = scene.means;
        scenes[JSON.stringify(setting)] ??= scene;
      }
      stage.look(setting[part] ?? null);
      show(scene.frame ?? frame ?? (isAtEnd ? -1 : now), jump);
      if (!scenes[wanted] && ask) request();
    } else if (ask) {
      request();
    } else {
      hint.textContent = "This needs Python: run this cell to change it.";
    }
    for (const one of puts) one();
    return Boolean(there);
  }

  function request() {
    ask(setting);
    clearTimeout(waiting);
    waiting = setTimeout(() => { hint.textContent = ASLEEP; }, PATIENCE);
  }

  function changeTo(wanted) {
    stop();
    const before = setting;
    setting = wanted;
    if (put() || ask) return;
    setting = before;  // a control does not say what the picture does not show
    for (const one of puts) one();
  }

  function begin(words, pressed) {
    question.textContent = words;
    for (const one of tries.children) one.setAttribute("aria-pressed", one === pressed);
  }

  function stop() {
    clearInterval(playing);
    playing = null;
    said.setAttribute("aria-live", "polite");
    play.textContent = "▶ Play";
  }

  function start() {
    if (now === scene.frames.length - 1) show(0, true);
    said.setAttribute("aria-live", "off");  // else it would be read out long after
    play.textContent = "Pause";
    const next = () => (now < scene.frames.length - 1 ? show(now + 1) : stop());
    playing = setInterval(next, scene.pace ?? 1000);
    next();
  }

  // What one can press: presets with their question; play and steps; controls.
  const tries = make("div", { class: "row", role: "group", "aria-label": "Try" }, top);
  const question = make("p", { class: "look", role: "status" }, top);
  for (const preset of story.presets) {
    const pressed = button(preset.words, () => {
      stop();
      setting = [...preset.setting];
      begin(preset.look, pressed);
      put(preset.frame, true);
    }, tries);
  }
  const keys = make("div", { class: "row" }, moves);
  const play = button("▶ Play", () => (playing ? stop() : start()), keys);
  button("Back", () => { stop(); show(Math.max(0, now - 1)); }, keys);
  button("Step", () => { stop(); show(now + 1); }, keys);
  const reset = () => {
    stop();
    setting = [...story.first];
    begin(story.look, null);
    put(story.frame, true);
  };
  button("Reset", reset, keys).classList.add("reset");
  const time = make("input", { type: "range", min: 0, class: "time", "aria-label": "moment" }, moves);
  time.oninput = () => { stop(); show(+time.value); };
  const hint = make("p", { class: "hint", role: "status" }, side);
  story.controls.forEach((control, place) => puts.push(MAKE[control.kind](control, side, {
    get: () => setting[place],
    set: (position) => changeTo(setting.with(place, position)),
    isOff: () => scene?.off?.includes(control.name) ?? false,
    stage, scene: () => scene, look,
  })));

  // A part of the axis: at once in the browser; and once it rests, in more detail from the kernel.
  let resting = null, detailed = null;
  function look(from, to) {
    if (part < 0) return;
    const axis = scene.axis, all = axis.to - axis.from;
    const span = Math.max(all / 4096, Math.min(to - from, all));
    const left = Math.max(axis.from, Math.min(from, axis.to - span));
    setting = setting.with(part, span < all ? [left, left + span] : null);
    stage.look(setting[part]);
    for (const one of puts) one();
    clearTimeout(resting);
    resting = setTimeout(detail, 150);
  }

  function detail() {
    const wanted = JSON.stringify(setting);
    if (scenes[wanted]) put(now, true);
    else if (ask) request();
    else hint.textContent = "More detail needs Python: run this cell to see it.";
  }

  begin(story.look, null);
  put(story.frame, true);
  return {
    stop,
    answer(given) {
      const key = JSON.stringify(given.setting), isDetail = given.setting[part] != null;
      if (isDetail) {  // of parts of an axis only the newest is kept
        delete scenes[detailed];
        detailed = key;
      }
      scenes[key] = unpack(given.scene);
      if (key === JSON.stringify(setting)) put(isDetail ? now : undefined, isDetail);  // the same picture does not move
    },
  };
}

// Controls, by kind: each makes its nodes, and returns a function that makes them show the setting.
const MAKE = {
  clicks() { return () => {}; },
  slider(control, side, { get, set, isOff }) {
    const label = make("label", { text: control.words }, side);
    const input = make("input", { type: "range", min: 0, max: control.labels.length - 1 }, label);
    const value = make("output", {}, label);
    input.oninput = () => set(+input.value);
    return () => {
      input.value = get();
      input.disabled = isOff();
      value.textContent = control.labels[get()];
      input.setAttribute("aria-valuetext", value.textContent);
    };
  },
  buttons(control, side, { get, set, isOff }) {
    const row = make("div", { class: "row choice", role: "group", "aria-label": control.words }, side);
    make("span", { text: control.words }, row);
    const all = control.labels.map((words, position) => button(words, () => set(position), row));
    return () => all.forEach((one, position) => {
      one.setAttribute("aria-pressed", position === get());
      one.disabled = isOff();
    });
  },
  checkbox(control, side, { get, set, isOff }) {
    const label = make("label", { class: "box" }, side);
    const input = make("input", { type: "checkbox" }, label);
    label.append(control.words);
    input.onchange = () => set(+input.checked);
    return () => { input.checked = get() === 1; input.disabled = isOff(); };
  },
  field(control, side, { get, set }) {
    const label = make("label", { class: "field", text: control.words }, side);
    const input = make("input", { type: "text", spellcheck: "false" }, label);
    input.onchange = () => input.value !== get() && set(input.value);
    input.onkeydown = (event) => event.key === "Enter" && input.onchange();  // JupyterLab lets none change a field
    return () => { input.value = get(); };
  },
  window(control, side, { stage, scene, look }) {
    const range = (words, max) => {
      const label = make("label", { text: words }, side);
      return make("input", { type: "range", min: 0, max, step: "any", value: 0 }, label);
    };
    const larger = range("zoom", 12), along = range("move", 1);
    const times = make("output", {}, larger.parentNode);
    const shown = () => stage.view ?? [scene().axis.from, scene().axis.to];
    larger.oninput = () => {
      const [from, to] = shown(), { axis } = scene();
      const span = (axis.to - axis.from) / 2 ** larger.value;
      look((from + to - span) / 2, (from + to + span) / 2);
    };
    along.oninput = () => {
      const [from, to] = shown(), { axis } = scene();
      const left = axis.from + along.value * (axis.to - axis.from - (to - from));
      look(left, left + to - from);
    };
    return () => {
      const { axis } = scene(), [from, to] = shown();
      const whole = axis.to - axis.from, span = to - from;
      larger.value = Math.log2(whole / span);
      if (span < whole) along.value = (from - axis.from) / (whole - span);
      along.disabled = span >= whole;
      times.textContent = `${+(whole / span).toPrecision(2)}×`;
    };
  },
};

// Play what a page has stored: as_html in stage.py wrote it.
function playStored(page) {
  for (const stored of page.querySelectorAll(".stage-stored:not(.stage)")) {
    const data = stored.querySelector("script");
    stored.replaceChildren();
    mount(stored, JSON.parse(data.textContent));
  }
}

// What anywidget calls for a live one.
function render({ model, el }) {
  let number = 0;
  const stage = mount(el, structuredClone(model.get("story")), (setting) => {
    model.set("asked", { setting, number: ++number });
    model.save_changes();
  });
  const hear = () => stage.answer(model.get("answer"));
  model.on("change:answer", hear);
  if (model.get("answer").scene) hear();  // what `put` has shown before this view was made
  return () => { stage.stop(); model.off("change:answer", hear); };
}

export default { render, mount };
