"""Pictures that move: the explorers' base, and what the explorers of several lessons draw."""


def view(widget):
    """What a notebook needs to show a widget of ipywidgets 7 or 8."""
    return {"application/vnd.jupyter.widget-view+json":
            {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}
