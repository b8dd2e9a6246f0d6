"""Which cells share a slide: the rule by which `tools/execute.py` writes a lesson's slide metadata.

    jupyter nbconvert --to slides --config docs/slides/config.py notebooks/05_distributed_data_parallel.ipynb

A heading begins a slide. Text keeps the code that follows it on its slide, and code its output, as far as they fit into
1280 × 720; what does not fit goes one slide down. A question ends its slide. Cells that only import are skipped, and
those of which nothing is to be seen. The sizes are those of docs/slides/slides.css, estimated; tests/test_slides.py
measures the real ones in a browser.
"""

import ast
import base64
import re
from math import ceil

from helpers.notebooks import parsed

ROOM = 650  # pixels of a slide that may be filled
CODE, TEXT = 24, 31  # pixels a line
CODE_WIDE, TEXT_WIDE = 104, 100  # characters a line
GAP = 22  # pixels between two blocks
PICTURE = 380, 1180  # the largest height and width of a picture that shares its slide


def mark(cells):
    """Write `slideshow` into each cell's metadata, `{"slide_type": …}`, in place.

    `slide_type` is "slide", "subslide", "skip", or "-" for a cell that goes on with the slide before. `"output":
    "subslide"` beside it has a cell's output begin a slide, for it and its code together are too long for one.
    """
    used, asked = 0, False
    for number, cell in enumerate(cells):
        text, (code, output) = cell.cell_type == "markdown", sizes(cell)
        following = [together(one) for one in cells[number + 1:number + 2] if text and one.cell_type == "code"]
        kind, own = "-", {}
        if not shows(cell):
            kind = "skip"
        elif number == 0 or (text and re.match("##? ", cell.source)):
            kind, used = "slide", 0
        elif asked or (text and cell.source.startswith("### ")) or used + sum([together(cell), *following]) > ROOM:
            kind, used = "subslide", 0
        if kind != "skip":
            asked = is_question(cell)
            used += code + output
            if output and code + output > ROOM:
                own, used = {"output": "subslide"}, output
        cell.metadata["slideshow"] = {"slide_type": kind, **own}


def together(cell):
    """How much of a slide a cell takes at once: its code with its output, or without, where the two fit on none."""
    code, output = sizes(cell)
    return 0 if not shows(cell) else code + output if code + output <= ROOM else code


def is_question(cell):
    """Whether a cell asks for a prediction: its code is hidden, and what follows would give the answer away."""
    return "source_hidden" in cell.metadata.get("jupyter", {})


def shows(cell):
    """Whether a cell belongs on a slide: it does more than import, or has something to show for it."""
    if cell.cell_type != "code" or any("data" in output for output in cell.outputs):
        return True
    statements = parsed(cell.source).body  # none of a magic
    imports = sum(isinstance(one, (ast.Import, ast.ImportFrom)) for one in statements)
    return imports <= len(statements) / 2 and not is_question(cell)


def sizes(cell):
    """Pixels that a cell takes: its text or code, and its output."""
    if cell.cell_type != "code":
        return prose(cell.source), 0
    return 0 if is_question(cell) else lines(cell.source) * CODE + GAP, sum(map(output_size, cell.outputs))


def lines(text, wide=CODE_WIDE):
    """Lines on a slide: long ones are wrapped."""
    return sum(max(1, ceil(len(line) / wide)) for line in text.rstrip("\n").split("\n"))


def prose(markdown):
    """Paragraphs flow; lines of lists, tables, headings and code stand alone."""
    flowing = re.sub(r"(?<=\S)\n(?![\s*|#`>-]|\d+\. )", " ", markdown)
    headings = len(re.findall("^##? ", markdown, re.MULTILINE))
    return sum(lines(block, TEXT_WIDE) * TEXT + GAP for block in re.split(r"\n\s*\n|\n(?=#)", flowing)) + 30 * headings


def output_size(output):
    data = output.get("data", {})
    if "image/png" in data:
        header = base64.b64decode(data["image/png"][:44])  # its width and height are bytes 16 to 24
        width, height = (int.from_bytes(header[at:at + 4], "big") for at in (16, 20))
        return min(PICTURE[0], height * min(1, PICTURE[1] / width)) + GAP
    if "text/markdown" in data:
        return prose(data["text/markdown"])
    if "text/html" in data and "class=\"highlight\"" not in data["text/html"]:
        return lines(data.get("text/plain", ""), TEXT_WIDE) * (TEXT + 4) + GAP
    text = output.get("text") or data.get("text/plain") or "\n".join(output.get("traceback", ()))
    return lines(text) * CODE + GAP
