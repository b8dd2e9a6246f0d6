"""What stands in for ipywidgets where it is missing: controls that keep the value that they begin with."""


class Control:
    """Any control. Nobody can move it, so nobody who observes it is ever called."""

    def __init__(self, value=None, min=None, max=None, step=None, *, options=(), **traits):
        self.__dict__.update(traits, min=min, max=max, step=step, options=options)
        self.value = options[0] if value is None and options else value

    def observe(self, handler, names=None):
        pass

    unobserve = on_click = add_class = observe


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    return Control
