"""How long an explorer takes to answer, in JupyterLab in chromium: python tests/benchmarks/explorers.py

A step is the browser's own, at most 16 ms; a control asks the kernel for what is not stored, at most 60 ms: medians,
from the key to the change of the picture. Ends with 1 where one takes longer.
"""

import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.browser import EXPLORERS, answer_times, chromium, jupyterlab, open_and_start, write_notebook  # noqa: E402

#: Nothing is stored but the first scene and the presets', so that controls have to ask.
ASK = "import helpers.widgets.stage\nhelpers.widgets.stage.ROOM = 0"


def measure(page, stage):
    """(median of steps, that of the slowest control), in ms; None where there is none."""
    step, controls = None, []
    if stage.locator(".time").is_visible():
        step = statistics.median(answer_times(page, stage, stage.locator(".time"), 20))
    for slider in stage.locator(".controls input[type=range]:enabled").all():
        controls.append(statistics.median(answer_times(page, stage, slider, 8)))
        stage.get_by_role("button", name="Reset", exact=True).click()
    return step, max(controls, default=None)


def main():
    too_slow = False
    with tempfile.TemporaryDirectory() as folder, jupyterlab(Path(folder), windowingMode="none") as lab, \
            chromium() as page:
        write_notebook(lab, "all.ipynb", ASK, *EXPLORERS.values())
        open_and_start(page, lab, "all.ipynb")
        page.locator(".stage svg").nth(len(EXPLORERS) - 1).wait_for(timeout=300_000)
        print(f"{'':16} {'step, ms':>10} {'control, ms':>12}")
        for number, name in enumerate(EXPLORERS, start=1):
            stage = page.locator(f".jp-Cell[data-windowed-list-index='{number}'] .stage")
            step, control = measure(page, stage)
            columns = ["—" if took is None else f"{took:.1f}" for took in (step, control)]
            print(f"{name:16} {columns[0]:>10} {columns[1]:>12}")
            too_slow |= (step or 0) > 16 or (control or 0) > 60
    sys.exit(too_slow)


if __name__ == "__main__":
    main()
