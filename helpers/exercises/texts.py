"""What exercises say in words: exercises.md, beside a lesson's exercises.py.

    # ring_all_reduce · All-reduce, by hand, in a ring
    The task, in Markdown.
    ## Hint
    One of them; there may be more.
    ## Explanation
    Shown with the solution.
    ## Why
    Shown when it is solved.
"""

import re
from functools import lru_cache
from pathlib import Path


@lru_cache
def texts(path):
    """{exercise's name: {"title", "task", "hints", "explanation", "why"}} of a file; empty where there is none."""
    found = {}
    if not Path(path).exists():
        return found
    for section in re.split(r"^# ", Path(path).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, rest = section.partition("\n")
        name, _, title = heading.partition(" · ")
        task, *parts = re.split(r"^## ", rest, flags=re.MULTILINE)
        told = found[name] = {"title": title, "task": _joined(task), "hints": ()}
        for part in parts:
            kind, _, text = part.partition("\n")
            if kind == "Hint":
                told["hints"] += (_joined(text),)
            else:
                told[kind.lower()] = _joined(text)
    return found


def _joined(text):
    """Paragraphs of one line each, as a notebook and a terminal show them."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip())
