"""What a notebook adds to a NameError: which cell of the lesson makes this name, and has to be run first."""

import re
import sys


def install():
    """Have IPython, if this runs in it, add that."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        load_ipython_extension(shell)


def load_ipython_extension(shell):
    """Called by IPython, too, where its configuration names this module as an extension."""
    shell.set_custom_exc((NameError, RuntimeError), _show)  # a rank's NameError comes as a RankError


def _show(shell, kind, error, traceback, tb_offset=None):
    name = re.search(r"name '(\w+)' is not defined", str(error))
    if name and isinstance(error.args[0], str):
        error.args = (error.args[0] + _advice(name[1], shell), *error.args[1:])
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)


def _advice(name, shell):
    from helpers.notebooks import code_cells  # here, as below: this module is imported by every rank

    cells_run = [source.strip() for source in shell.history_manager.input_hist_raw]
    failed_cell = cells_run[-1]
    lesson = []
    most_alike = (False, 0)
    for cells in code_cells().values():
        sources = [source.strip() for _, source in cells]
        alike = (failed_cell in sources, len(set(sources) & set(cells_run)))
        if alike > most_alike:
            most_alike = alike
            lesson = sources
    above = lesson  # of a notebook of the learner's own: nothing
    if failed_cell in lesson:  # a cell that was edited stands nowhere
        above = lesson[:lesson.index(failed_cell)]
    for source in reversed(above):
        if name in names_made(shell.transform_cell(source)):
            return (f". A cell of this lesson that begins with `{source.splitlines()[0]}` makes it: "
                    "run that cell first, or all cells above this one")
    return ""


def names_made(source):
    """The names that a notebook has after it ran this cell; none if this is not Python."""
    import dis

    try:
        code = compile(source, "<cell>", "exec")
    except (SyntaxError, ValueError):
        return set()
    # In what the cell compiles to, whatever binds a name is one of these: =, import, def, class, for, with.
    stores = "STORE_NAME", "STORE_GLOBAL"
    return {step.argval for step in dis.get_instructions(code) if step.opname in stores}
