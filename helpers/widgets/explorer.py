"""What all explorers share: controls above a figure that is drawn anew when one of them changes."""

import warnings

from helpers.figures import as_html, stored

try:
    import ipywidgets as widgets
except ImportError:
    from helpers.widgets import still as widgets

    warnings.warn("ipywidgets is not installed here: explorers show a picture each, and nothing can be "
                  "moved.", stacklevel=2)

#: How a control looks: what it sets stands at its left.
LOOK = {"style": {"description_width": "190px"}, "layout": {"width": "640px"}}


def slider(description, value, least, most, step=1):
    """A slider through whole numbers."""
    return widgets.IntSlider(value, least, most, step, description=description, **LOOK)


def choice(description, value, options):
    """A slider through `options`: values, or pairs of a name and a value."""
    return widgets.SelectionSlider(options=options, value=value, description=description, **LOOK)


def buttons(description, options):
    """A button for each option; the first one is pressed."""
    return widgets.ToggleButtons(options=list(options), description=description)


def checkbox(description):
    """A box that is not ticked."""
    return widgets.Checkbox(False, description=description, indent=False)


def wipe(*axes):
    """Remove what was drawn into the axes. Ticks and titles stay: `clear` would take much longer."""
    for ax in axes:
        for artist in (*ax.containers, *ax.collections, *ax.lines, *ax.texts):
            artist.remove()
        for patch in ax.patches:  # those that were in no container
            patch.remove()


class Explorer(widgets.VBox):
    """Controls above a figure. Where no kernel runs, as on GitHub, the output shows the first picture."""

    def __init__(self, controls, draw, description):
        """
        Args:
            controls: {name: ipywidgets control}; when one changes, the figure is drawn from all values.
            draw: Called as `draw(name=value, …)`, returns a `Figure`; to be quick, the same one each time.
            description: What the explorer's docstring says; a text-only reader gets its first paragraph.
        """
        self.controls, self.draw = controls, draw
        self.description = " ".join(description.partition("\n\n")[0].split())
        self.picture = widgets.HTML()
        self._redraw()
        for control in controls.values():
            control.observe(self._redraw, names="value")
        super().__init__([*controls.values(), self.picture])

    def figure(self):
        """The figure for the controls' values of this moment."""
        return self.draw(**{name: control.value for name, control in self.controls.items()})

    def _redraw(self, _change=None):
        self.picture.value = as_html(self.figure())

    def _repr_mimebundle_(self, **kwargs):
        return with_static(super()._repr_mimebundle_(**kwargs), self.description, self.figure())


def with_static(bundle, description, figure):
    """The mime bundle and metadata of a widget, with a text and a picture for whoever cannot show widgets."""
    picture, shown = stored(figure)
    return {**(bundle or {}), "text/plain": description, "image/png": picture}, {"image/png": shown}
