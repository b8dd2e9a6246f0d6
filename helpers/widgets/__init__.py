"""Pictures that move: the explorers' base, and what the explorers of several lessons draw."""

#: Front ends give this class to a widget whose kernel was restarted or shut down; ipywidgets adds a red mark.
_GONE = "jupyter-widgets-disconnected"
_WITH_LINE = f".{_GONE}:has(> .course-gone)"
_STYLE = f"""<style>
.course-gone.jupyter-widgets:not(.{_GONE}), {_WITH_LINE}::before, {_WITH_LINE} .{_GONE}::before {{display: none}}
{_WITH_LINE} .jupyter-button {{opacity: 0.7; cursor: default; box-shadow: none}}
</style>"""


def view(widget):
    """What a notebook needs to show a widget of ipywidgets 7 or 8."""
    return {"application/vnd.jupyter.widget-view+json":
            {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}


def line_when_gone(words):
    """Stands first in a box of widgets: `words`, which are seen once the kernel behind the box no longer answers."""
    import ipywidgets as widgets

    line = widgets.HTML(f'{_STYLE}<div role="status"><strong>{words}</strong></div>')
    line.add_class("course-gone")
    return line
