"""What the notebooks of the course hold, read from their files, which may lie anywhere or be missing."""

import ast
import json

from helpers.places import LESSONS, NOTEBOOKS


def paths():
    """The lessons' notebooks, in their order; a learner's copies are none."""
    numbered = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    return [path for path in numbered if (LESSONS / path.stem[3:]).is_dir()]


def title(lesson):
    """Of a lesson such as "05_distributed_data_parallel": its heading, "05 · How do …?", without the number."""
    path, = (path for path in paths() if path.stem == lesson)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "".join(cells[0]["source"]).partition("\n")[0].partition(" · ")[2]


def code_cells():
    """{"00_start_here": [(cell's id, source), …], …}, in their order; what cannot be read is left out."""
    cells_by_lesson = {}
    for path in paths():
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            cells_by_lesson[path.stem] = [(cell.get("id", ""), "".join(cell["source"])) for cell in cells
                                          if cell["cell_type"] == "code"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # the learner edits this file
    return cells_by_lesson


def parsed(source):
    """The cell's syntax tree; an empty one if it is no plain Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])
