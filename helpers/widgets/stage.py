"""The stage: an explorer is frames of named shapes, which the browser draws and moves.

    def scene(ranks):                                   # a pure function of the controls' values
        frames = [{"title": "Before", "note": "…", "shapes": [box("rank 0", 20, 20, 60, 30, text="1")]}, …]
        return {"size": [560, 400], "frames": frames}

    Stage("ring_explorer", "What it shows.", scene, {"ranks": slider("ranks", 4, range(2, 7))},
          look="What to look for?", presets={"2 ranks": preset("A question?", ranks=2)})

Shapes of one name glide from frame to frame (`helpers.widgets.shapes` makes them). `stage.js` draws them, and knows
nothing of any lesson. Scenes of all presets, and of each value of small controls, travel with the notebook: the
browser plays them without a kernel, and asks for the others.
"""

import base64
import html
import json
from functools import partial
from itertools import product
from pathlib import Path

import anywidget
import traitlets

from helpers.widgets import view
from helpers.widgets.shapes import SHAPE, finished
from helpers.widgets.still import as_svg

HERE = Path(__file__).parent
#: What scenes and frames may hold.
#: "pace": milliseconds from frame to frame in play; "flows": shapes move evenly, as time does, all that while.
#: "axis": see `helpers.widgets.shapes.Lanes`; "off": the names of controls that change nothing in this scene.
#: "frame": the number of the frame that it begins with, whichever was shown before.
#: "means": the values of all controls that stand for this scene, and from then on take the place of those asked for.
SCENE = {"size", "frames", "axis", "pace", "flows", "off", "frame", "means"}
FRAME = {"title", "note", "alt", "shapes"}
#: How what plays a stored explorer begins, after its data.
PLAYER = '<style class="stage-player">'
#: Characters of JSON that an explorer stores with a notebook, if it says nothing else.
ROOM = 80_000


def slider(words, value, options):
    """A control: a slider through `options`, values or pairs of a label and a value."""
    return {"kind": "slider", "words": words, "value": value, "options": list(options)}


def buttons(words, value, options):
    """A control: a button for each of `options`, values or pairs of a label and a value; one of them is pressed."""
    return {"kind": "buttons", "words": words, "value": value, "options": list(options)}


def checkbox(words, value=False):
    """A control: a box that is ticked or not."""
    return {"kind": "checkbox", "words": words, "value": value, "options": [False, True]}


def field(words, value):
    """A control: a field for any text."""
    return {"kind": "field", "words": words, "value": value}


def window(value=None):
    """A control that one moves on the picture's axis: the part of it that is shown, [from, to], or None for all.

    The scene of a part still holds the whole axis, with more detail in that part. The browser has the scene of None,
    zooms it at once, and asks for the other one where it can.
    """
    return {"kind": "window", "words": "", "value": value}


def clicks():
    """A control that one clicks on in the picture: [what the shape's `click` says, the number of the frame], or None.

    Its scene `means` values of the other controls, and None for this one: a click is over once it is answered.
    """
    return {"kind": "clicks", "words": "", "value": None}


def preset(look, frame=0, **values):
    """A button that sets `values`, and all other controls to what they began with; `look` is its question.

    frame: the number of the frame that it begins with; -1 is the last one.
    """
    return {"look": look, "frame": frame, "values": values}


class Stage(anywidget.AnyWidget):
    """An explorer on a page: its question, presets and controls beside a picture that moves."""

    _esm = HERE / "stage.js"
    _css = HERE / "stage.css"
    _ipython_display_ = None  # ipywidgets 7 has one, which would store no picture
    #: All that the browser needs to play without a kernel.
    story = traitlets.Dict().tag(sync=True)
    #: A setting whose scene the browser does not have, {"setting", "number"}, and the answer, {"setting", "scene"}.
    asked = traitlets.Dict().tag(sync=True)
    answer = traitlets.Dict().tag(sync=True)

    def __init__(self, name, description, scene, controls, look, presets=None, frame=0, still=-1,
                 everything=False, room=ROOM):
        """
        Args:
            name: Of the explorer, for errors.
            description: What a text-only reader gets: an explorer's docstring, up to the first empty line.
            scene: `scene(**{control: value})` returns {"size": [width, height], "frames": [frame, …]}.
            controls: {name: what `slider`, `buttons`, `checkbox`, `field`, `window` or `clicks` return}.
            look: What to look for, in a sentence.
            presets: {words on a button: what `preset` returns}.
            frame: The number of the frame that it begins with; -1 is the last one.
            still: The number of the frame that the static picture shows.
            everything: Whether the scenes of all settings are stored, as far as there is room, and not only those in
                which one control has another value than at first.
            room: Characters of JSON that are stored at most, presets apart.

        Raises:
            ValueError: a scene holds what the stage does not know, two shapes of one name, or no number.
        """
        self.name = name
        self.description = " ".join(description.partition("\n\n")[0].split())
        self.scene = scene
        self.controls = controls
        self.still = still
        self.everything = everything
        self.room = room
        first = {control: kind["value"] for control, kind in controls.items()}
        story = {"look": look, "frame": frame, "first": self._positions(first), "presets": [], "controls": []}
        settings = [first]
        for on_button, one in (presets or {}).items():
            settings.append({**first, **one["values"]})
            story["presets"].append({"words": on_button, "look": one["look"], "frame": one["frame"],
                                     "setting": self._positions(settings[-1])})
        for control, kind in controls.items():
            story["controls"].append({"name": control, "kind": kind["kind"], "words": kind["words"],
                                      "labels": _labels(kind)})
        #: The name of the scene that is shown first.
        self.stored = self._key(self._whole(first))
        story["scenes"] = self._scenes(settings, first)
        super().__init__(story=story)
        self.observe(self._answer, "asked")

    def packed(self, shared=None, /, **values):
        """The scene as the browser gets it: of each frame, only what differs from the frame before.

        shared: {name: shape}; of the first frame, only what differs from these.
        """
        scene = self.scene(**values)
        try:
            return _packed(scene, self._positions, shared)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.name}, {values}: {error}") from error

    def put(self, scene):
        """Show another scene in place of the first one: for what grows while one looks on."""
        setting = self.story["first"]
        packed = _packed(scene, self._positions)
        self.story.setdefault("shared", self.story["scenes"][self.stored]["frames"][0]["set"])
        self.answer = {"setting": setting, "scene": packed}
        self.story["scenes"][self.stored] = packed  # for whoever saves the notebook

    def _scenes(self, settings, first):
        """{setting: packed scene} of all that are stored: these, and as many others as there is room for.

        The first one is whole. Of the others' first frames, only what differs from its first frame is stored.
        """
        scenes, size, shared = {}, 0, None
        settings = [self._whole(setting) for setting in settings]
        for setting in [*settings, *map(self._whole, self._others(first))]:
            key = self._key(setting)
            if key in scenes:
                continue
            packed = self.packed(shared, **setting)
            shared = shared or packed["frames"][0]["set"]
            needs = len(_json(packed))
            if size + needs <= self.room or setting in settings:
                scenes[key] = packed
                size += needs
        return scenes

    def _others(self, first):
        """All settings, or those in which one control has another value than at first."""
        options = {}
        for control, kind in self.controls.items():
            options[control] = [_value(option) for option in kind.get("options", [kind["value"]])]
        if self.everything:
            for values in product(*options.values()):
                yield dict(zip(options, values, strict=True))
        for control, values in options.items():
            for value in values:
                yield {**first, control: value}

    def _whole(self, values):
        """`values` with all of the axis in sight: the browser zooms what it has."""
        return {control: None if self.controls[control]["kind"] == "window" else value
                for control, value in values.items()}

    def _positions(self, values):
        """`values` as the browser counts them: the number of an option; or the text, or the window itself."""
        positions = []
        for control, kind in self.controls.items():
            if control not in values:
                positions.append(None)
            elif "options" in kind:
                positions.append([_value(option) for option in kind["options"]].index(values[control]))
            else:
                positions.append(values[control])
        return positions

    def _key(self, values):
        return _json(self._positions(values))

    def _answer(self, change):
        setting = change["new"]["setting"]
        values = {}
        for (control, kind), position in zip(self.controls.items(), setting, strict=True):
            values[control] = _value(kind["options"][position]) if "options" in kind else position
        self.answer = {"setting": setting, "scene": self.packed(**values)}

    def _repr_mimebundle_(self, **kwargs):
        part = next((kind["value"] for kind in self.controls.values() if kind["kind"] == "window"), None)
        scene = self.story["scenes"][self.stored]
        picture = as_svg(scene, scene.get("frame", self.still), part)
        return {**view(self), "text/plain": self.description, "image/svg+xml": picture,
                "text/html": as_html(self.story, picture, self.description)}


def as_html(story, picture, description):
    """The explorer for a page without a kernel: its data, then what plays them. Where no script runs: a picture."""
    image = base64.b64encode(picture.encode()).decode()
    data = _json(story).replace("</", "<\\/")
    return (f'<div class="stage-stored"><p>{html.escape(description)}</p>\n'
            f'<img alt="" src="data:image/svg+xml;base64,{image}">\n'
            f'<script type="application/json">{data}</script></div>\n{player()}')


def player():
    """Style and script that play all explorers on a page, without indentation and lines of comments."""
    style = (HERE / "stage.css").read_text(encoding="utf-8")
    script = (HERE / "stage.js").read_text(encoding="utf-8").partition("export default")[0]
    lines = [line.strip() for line in script.splitlines()]
    script = "\n".join(line for line in lines if line and not line.startswith("//"))
    return f'{PLAYER}\n{style}</style>\n<script type="module">\n{script}\nplayStored(document);\n</script>'


def _packed(scene, positions, shared=None):
    _refuse_unknown(scene, SCENE, "a scene")
    packed = {name: value for name, value in scene.items() if name != "frames"}
    packed["frames"] = []
    if "means" in scene:
        packed["means"] = positions(scene["means"])
    decimals = 4 if scene.get("axis", {}).get("zoom") else 1  # a pixel of what is zoomed is small
    before, before_finished = {}, shared or {}
    for frame in scene["frames"]:
        _refuse_unknown(frame, FRAME, f"the frame {frame.get('title')!r}")
        now, now_finished, changes = {}, {}, {}
        for shape in frame["shapes"]:
            name = shape["id"]
            if name in now:
                raise ValueError(f"two shapes have the name {name!r} in the frame {frame['title']!r}")
            now[name] = shape
            if shape == before.get(name):
                now_finished[name] = before_finished[name]
                continue
            _refuse_unknown(shape, SHAPE, f"the shape {name!r}")
            if ("click" in shape or "drag" in shape) and not (shape.get("text") or shape.get("tip")):
                raise ValueError(f"the shape {name!r} can be used, and has neither words nor a tip to say for what")
            now_finished[name] = finished(shape, positions, decimals)
            changed = _changed(before_finished.get(name, {}), now_finished[name])
            if changed:
                changes[name] = changed
        words = {name: value for name, value in frame.items() if name != "shapes"}
        gone = [name for name in before_finished if name not in now]
        packed["frames"].append({**words, "set": changes, **({"gone": gone} if gone else {})})
        before, before_finished = now, now_finished
    _json(packed)  # what is no number is refused here
    return packed


def _changed(before, now):
    """What is to be changed in a shape; None takes a key away."""
    return {key: now.get(key) for key in {**before, **now} if before.get(key) != now.get(key)}


def _refuse_unknown(given, known, what):
    unknown = set(given) - known
    if unknown:
        raise ValueError(f"{what} has {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")


def _value(option):
    return option[1] if isinstance(option, tuple) else option


def _labels(kind):
    return [str(option[0] if isinstance(option, tuple) else option) for option in kind.get("options", ())]


#: As JavaScript's JSON.stringify writes it: settings are compared as text.
_json = partial(json.dumps, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
