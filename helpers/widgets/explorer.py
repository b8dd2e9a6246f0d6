"""What all explorers share: controls above a picture that is drawn anew when one of them changes."""

import ipywidgets as widgets

from helpers.widgets.svg import picture_of


class Explorer(widgets.VBox):
    """Controls above a picture.

    Where no kernel runs, on GitHub for example, the output shows the first picture; a text-only reader gets
    `description`.
    """

    def __init__(self, controls, draw, description):
        """
        Args:
            controls: {name: ipywidgets control}; when one changes, the picture is drawn from all values.
            draw: Called as `draw(name=value, …)`, returns the picture as HTML or SVG text.
            description: One or two sentences that say what the picture shows; the same in every execution.
        """
        self.controls, self.draw, self.description = controls, draw, description
        self.picture = widgets.HTML(self._drawn())
        for control in controls.values():
            control.observe(self._redraw, names="value")
        super().__init__([*controls.values(), self.picture])

    def _drawn(self):
        return self.draw(**{name: control.value for name, control in self.controls.items()})

    def _redraw(self, _change=None):
        self.picture.value = self._drawn()

    def static(self):
        """The picture as it is stored, for readers without a kernel."""
        return self.picture.value

    def _repr_mimebundle_(self, **kwargs):
        return with_static(super()._repr_mimebundle_(**kwargs), self.description, picture_of(self.static()))


def with_static(bundle, description, picture):
    """The mime bundle of a widget, with a text and a picture for readers that cannot show widgets."""
    return {**(bundle or {}), "text/plain": description, "text/html": picture}
