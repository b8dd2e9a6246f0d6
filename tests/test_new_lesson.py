"""tools/new_lesson.py: the skeleton passes its own tests and those of lessons, and overwrites nothing."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.fixture
def tree(tmp_path):
    """Run Python in a copy of the course: `tree(*words)` gives the exit code and the output."""
    copy = tmp_path / "course"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "benchmarks"))

    def run(*words):
        environment = {**os.environ, "PYTHONPATH": f"{copy}:{copy}/notebooks"}
        ended = subprocess.run([sys.executable, *words], cwd=copy, env=environment, text=True, timeout=200,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return ended.returncode, ended.stdout

    return run


@pytest.mark.long
def test_a_new_lesson_passes_its_tests(tree):
    code, made = tree("tools/new_lesson.py", "a_new_one")
    files = [line for line in made.splitlines() if " " not in line]
    notebook, worker, exercises, exercise, questions, *tests = files
    assert code == 0 and len(tests) == 2, made
    strict = "--nbval --nbval-current-env --nbval-sanitize-with=tests/sanitize.cfg"
    row = f"[{notebook.removeprefix('notebooks/')[:2]}]"
    code, said = tree("-m", "pytest", "-q", "-n0", "-o", f"addopts={strict}", "-k", f"a_new_one or {row}",
                      notebook, *tests,
                      *(f"tests/{name}.py" for name in ("exercises/test_all", "exercises/test_all_mistakes",
                                                        "exercises/test_predictions", "test_notebooks",
                                                        "test_readme")))
    assert code == 0, said
    code, said = tree("-m", "ruff", "check", "-q", ".")
    assert code == 0, said
    code, said = tree("tools/new_lesson.py", "a_new_one")
    assert code == 2 and f"{worker}, {exercises}, {exercise}, {questions}" in said and "there already" in said
    code, said = tree("tools/new_lesson.py", "fresh_2")
    assert code == 2 and "small letters" in said
