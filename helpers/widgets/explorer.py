"""What all explorers share: presets, play and controls beside a picture that they draw anew."""

from functools import partial

import ipywidgets as widgets

from helpers.figures import as_html, small_png
from helpers.widgets import view

#: How a control looks: in the column beside the picture, its name at its left.
LOOK = {"style": {"description_width": "110px"}, "layout": {"width": "auto"}}
#: The picture is as large as the screen allows, with room for a question above it. Where the notebook is too
#: narrow for both, the column stands above the picture.
SHEET = """<style>
.explorer {flex-flow: row wrap; gap: 4px 14px}
.explorer > .side {flex: 0 0 300px; overflow: visible}
.explorer > .picture {flex: 1 1 440px; min-width: 0; margin: 0}
.explorer .widget-html-content {line-height: 1.35}
.explorer > .picture .widget-html-content {line-height: 0}
.explorer > .picture img {max-height: max(300px, calc(100vh - 290px))}
.explorer .keys {flex-flow: row wrap; overflow: visible}
.explorer .keys :is(.jupyter-button, .widget-label) {width: auto; flex-grow: 0; padding: 0 8px}
.explorer .keys .widget-play {width: 76px}
.explorer .widget-inline-hbox:has(> .widget-label) {height: auto; min-height: 28px}
.explorer .widget-label {white-space: normal; line-height: 1.15; text-align: left;
    align-self: center; height: auto}
.explorer .widget-readout {min-width: 50px; flex-shrink: 0; overflow: visible}
.explorer .widget-toggle-buttons {flex-flow: column; height: auto}
.explorer .widget-toggle-button {width: auto; padding: 0 8px}
.explorer button.jupyter-button:focus-visible {outline: 3px solid #1976d2; outline-offset: 1px}
</style>"""


def slider(description, value, least, most, step=1):
    """A slider through whole numbers."""
    return widgets.IntSlider(value, least, most, step, description=description, **LOOK)


def clock():
    """A slider through the time that a picture shows; see `curtain`."""
    return slider("time shown, %", 100, 0, 100, 4)


def choice(description, value, options):
    """A slider through `options`: values, or pairs of a name and a value."""
    return widgets.SelectionSlider(options=options, value=value, description=description, **LOOK)


def buttons(description, options):
    """A button for each option; the first one is pressed."""
    return widgets.ToggleButtons(options=list(options), description=description, **LOOK)


def checkbox(description):
    """A box that is not ticked."""
    return widgets.Checkbox(False, description=description, indent=False, layout={"width": "auto"})


def wipe(*axes):
    """Remove what was drawn into the axes. Ticks and titles stay: `clear` would take much longer."""
    for ax in axes:
        for artist in (*ax.containers, *ax.collections, *ax.lines, *ax.texts):
            artist.remove()
        for patch in ax.patches:  # those that were in no container
            patch.remove()


def curtain(ax, percent):
    """Cover what a timeline shows after `percent` of its width, so that it seems to run while they grow."""
    if percent == 100:
        return
    begin, end = ax.get_xlim()
    now = begin + percent / 100 * (end - begin)
    ax.axvspan(now, end, facecolor="white", alpha=0.93, linewidth=0, zorder=8)
    ax.axvline(now, color="#111111", linewidth=2, zorder=9)
    ax.figure.set_label(f"{ax.figure.get_label()} Only the first {percent} % of the time are drawn.")


class Explorer(widgets.Box):
    """Controls beside a figure. Where no kernel runs, as on GitHub, the output shows the first picture."""

    _ipython_display_ = None  # ipywidgets 7 has one, which would store no picture

    def __init__(self, controls, draw, description, look="", presets=None, play=None):
        """
        Args:
            controls: {name: ipywidgets control}; when one changes, the figure is drawn from all values.
            draw: Called as `draw(name=value, …)`, returns a `Figure`; to be quick, the same one each time.
            description: What the explorer's docstring says; a text-only reader gets its first paragraph.
            look: What to look for, in a sentence.
            presets: {name on a button: ({name: value}, what to look for)}; other controls begin anew.
            play: The name of a slider of whole numbers through which the picture moves.
        """
        self.controls = controls
        self.draw = draw
        self.look = look
        self.description = " ".join(description.partition("\n\n")[0].split())
        self.first_values = {name: control.value for name, control in controls.items()}
        self.words = widgets.HTML()
        self.picture = widgets.HTML()
        self.playing = controls.get(play)  # the slider that moves by itself
        self.player = None  # the button that moves it
        self._is_putting = False  # while `put` sets several controls, nothing is drawn
        self.presets = {}
        for name, preset in (presets or {}).items():
            self.presets[name] = self._button(name, partial(self.put, *preset))
        self._say(look)
        self._redraw()
        for control in controls.values():
            control.observe(self._redraw, names="value")
        super().__init__(self._laid_out())
        self.add_class("explorer")

    def _laid_out(self):
        """What stands in the explorer: a column of all that can be pressed and moved, and the picture."""
        preset_keys = widgets.HBox([widgets.Label("Try:"), *self.presets.values()])
        keys = [self._button("Reset", self.put)]
        if self.playing is not None:
            self.player = self._player()
            keys = [self.player, self._button("Step", self.step), *keys]
        moving_keys = widgets.HBox(keys)
        sheet = widgets.HTML(SHEET, layout={"display": "none"})
        side = widgets.VBox([sheet, preset_keys, self.words, moving_keys, *self.controls.values()])
        preset_keys.add_class("keys")
        moving_keys.add_class("keys")
        side.add_class("side")
        self.picture.add_class("picture")
        return [side, self.picture]

    def _button(self, words, press):
        button = widgets.Button(description=words)
        button.on_click(lambda _: press())
        return button

    def _player(self):
        """The button that moves the slider. The browser counts, so that a slow kernel leaves pictures out."""
        slider = self.playing
        play = widgets.Play(value=slider.value, min=slider.min, max=slider.max, step=slider.step, interval=500)
        play.show_repeat = False
        widgets.link((slider, "max"), (play, "max"))
        widgets.jslink((play, "value"), (slider, "value"))
        return play

    def step(self):
        """Move on by one step; after the last one comes the first."""
        slider = self.playing
        if slider.value < slider.max:
            slider.value += slider.step
        else:
            slider.value = slider.min

    def put(self, values=(), look=None):
        """Set all controls to what they began with, but for `values`; draw once."""
        self._is_putting = True
        if self.player is not None:
            self.player.playing = False  # or it would move on from here
        for name, value in {**self.first_values, **dict(values)}.items():
            self.controls[name].value = value
        self._is_putting = False
        self._say(self.look if look is None else look)
        self._redraw()

    def _say(self, words):
        self.words.value = f'<div role="status">{words}</div>'

    def figure(self):
        """The figure for the controls' values of this moment."""
        values = {name: control.value for name, control in self.controls.items()}
        return self.draw(**values)

    def _redraw(self, change=None):
        if self._is_putting:
            return
        if change and change["owner"] is not self.playing:
            self._say(self.look)  # what a preset is about has changed
        self.picture.value = as_html(self.figure())

    def _repr_mimebundle_(self, **kwargs):
        return with_static(self, self.description, self.figure())


def with_static(widget, description, figure):
    """The mime bundle and metadata of a widget, with a text and a picture for whoever cannot show widgets."""
    picture, shown = small_png(figure)
    return {**view(widget), "text/plain": description, "image/png": picture}, {"image/png": shown}
