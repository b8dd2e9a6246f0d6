"""How long an explorer takes from a key to its next picture, in JupyterLab in a real browser: see README.md."""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.browser import (
    EXPLORERS,
    LOOK,
    answer_times,
    chromium,
    jupyterlab,
    open_and_run_all,
    say_and_store,
    scroll_to,
    write_notebook,
)
from tests.conftest import ROOT


def main():
    with tempfile.TemporaryDirectory() as folder, jupyterlab(Path(folder)) as lab, chromium() as page:
        write_notebook(lab, "explorers.ipynb", LOOK, *EXPLORERS.values())
        open_and_run_all(page, lab, "explorers.ipynb")
        for number, name in enumerate(EXPLORERS, start=1):
            cell = scroll_to(page, f".jp-CodeCell[data-windowed-list-index='{number}']")
            say_and_store(ROOT / "build" / "browser" / "explorers.json", {name: answer_times(page, cell)})


if __name__ == "__main__":
    main()
