"""All links of the pages and lessons: those within the course lead to a file, those that lead out answer.

    python tools/links.py       exits with 1 where one is broken; without a network, the others are listed
"""

import json
import re
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/*.md", "data/**/*.md", "tests/**/*.md", "notebooks/*.ipynb")
SOURCES = ("notebooks/lessons/**/*.py", "helpers/**/*.py", "data/records/*.json")  # of what lessons print


def texts(patterns):
    """(file, what is written in it) of each page and lesson; of a lesson, its text cells."""
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        yield path, text


def broken():
    """["file: target", …] of links to files that are not there."""
    return [f"{path.relative_to(ROOT)}: {target}" for path, text in texts(PAGES)
            for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
            if not (path.parent / target).exists()]


def external():
    """All addresses outside the course."""
    address = re.compile(r"https://[\w./?=&%~#:+-]+[\w/]")
    found = {link for _, text in texts((*PAGES, *SOURCES)) for link in address.findall(text)}
    return sorted(found - {"https://github.com/OWNER/NAME"})  # which stands for the course's own


def answer(link):
    """What a server says to a link: its status, or None where no server answers."""
    request = urllib.request.Request(link, headers={"User-Agent": "Mozilla/5.0"})  # some refuse Python's own
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def main():
    wrong = broken()
    links = external()
    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip(links, pool.map(answer, links), strict=True))
    if not any(answers.values()):
        print("No network here: none of these was checked.", *links, sep="\n  ")
    else:
        wrong += [f"{link}: {status or 'no answer'}" for link, status in answers.items() if status != 200]
    print(*wrong, f"{len(links)} links lead out of the course; {len(wrong)} are broken.", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
