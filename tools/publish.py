"""Write the course's public address and its badges into all lessons, pyproject.toml and CITATION.cff.

    python tools/publish.py https://github.com/OWNER/NAME
    python tools/publish.py                                 the version in pyproject.toml has changed

From then on each lesson's first cell fetches the course from there where it is not installed, at the tag of
its version; so the tag has to be there. Lessons without a first cell get theirs. Nothing is executed. At the
end it writes the checksums by which `tools/update.py` sees what a learner has changed in a downloaded course.
"""

import argparse
import json
import re
import subprocess

import nbformat
from execute import NOTEBOOKS, ROOT, store

from tools import update
from tools.everywhere import place, project

PYPROJECT, CITATION = ROOT / "pyproject.toml", ROOT / "CITATION.cff"


def write_address(address):
    """Have pyproject.toml and CITATION.cff name the address, in the place of the one before."""
    text, line = PYPROJECT.read_text(encoding="utf-8"), f'Repository = "{address}"'
    text, known = re.subn(r'^Repository = ".*"$', line, text, flags=re.MULTILINE)
    if not known:
        text = re.sub(r"^\[tool\.", f"[project.urls]\n{line}\n\n[tool.", text, count=1, flags=re.MULTILINE)
    PYPROJECT.write_text(text, encoding="utf-8")
    cited = re.sub(r"^repository-code: .*\n", "", CITATION.read_text(encoding="utf-8"), flags=re.MULTILINE)
    CITATION.write_text(f"{cited}repository-code: {address}\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Write the course's public address into all lessons.")
    parser.add_argument("address", nargs="?", help="for `git clone`, such as https://github.com/OWNER/NAME")
    address = parser.parse_args().address
    if address is not None:
        if not re.fullmatch(r"(https|file)://[\w.~:/-]+", address):
            parser.error(f"{address!r}: an address such as https://github.com/OWNER/NAME")
        write_address(address.rstrip("/").removesuffix(".git"))
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        place(book, path.name)
        store(book, path)
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    files = [path for path in tracked if path != update.LIST and (ROOT / path).is_file()]
    sums = {path: update.checksum(ROOT / path) for path in files}
    (ROOT / update.LIST).write_text(json.dumps(sums, indent=0), encoding="utf-8")
    address, version = project("Repository"), project("version")
    print(f"The lessons fetch version {version} from {address}. Commit this, then: git tag v{version} "
          f"&& git push --follow-tags origin HEAD v{version}"
          if address else "The course has no public address yet.")


if __name__ == "__main__":
    main()
