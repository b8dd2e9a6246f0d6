"""The course as a package: a wheel, a kernel without a checkout, a lesson's first cell, and where lessons open."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml

from helpers import first_cell, preflight
from tests.conftest import ROOT
from tools import execute

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
VERSION = execute.project()[0]
#: Executes lesson.ipynb in its folder, in a kernel of the Python that runs this.
EXECUTE = ("import nbformat, nbclient; book = nbformat.read('lesson.ipynb', 4); "
           "nbclient.NotebookClient(book, timeout=600, kernel_name='python3').execute(); "
           "nbformat.write(book, 'lesson.ipynb')")


def run(python, *words, cwd, **environment):
    """Run Python without this environment's paths; return the exit code, and what it printed."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, *map(str, words)], cwd=cwd, env={**clean, **environment}, text=True,
                          timeout=1200, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The course as a wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    code, printed = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    assert code == 0, printed
    [path] = folder.iterdir()
    return path


@pytest.fixture
def bare(tmp_path):
    """The Python of an environment with all that is installed here, but without the course."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    here = Path(sysconfig.get_paths()["purelib"])
    there = Path(sysconfig.get_paths(vars={"base": folder, "platbase": folder})["purelib"])
    for entry in here.iterdir():
        if not re.search("parallel_pytorch_course|^helpers$|^__pycache__", entry.name):
            (there / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.fixture
def empty(tmp_path):
    """An empty folder, for a notebook alone."""
    folder = tmp_path / "opened"
    folder.mkdir()
    return folder


def first_cell_of(wheel, monkeypatch):
    """The first cell of lessons whose address is a wheel on disk."""
    monkeypatch.setattr(execute, "project", lambda: (VERSION, wheel.as_uri()))
    return execute.first_cell()


def contents(folder):
    """{path: bytes} of all files in a folder; of a link, where it leads."""
    return {path.relative_to(folder): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def test_every_lesson_begins_with_exactly_this_cell():
    for path in LESSONS:
        code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert [cell.id == execute.FIRST_CELL for cell in code] == [True] + [False] * (len(code) - 1), path
        assert code[0].source == execute.first_cell(), f"{path}: run tools/execute.py --normalise"
        assert code[0].metadata["jupyter"] == {"source_hidden": True} and not code[0].outputs
    assert len(execute.first_cell().splitlines()) <= 4


def test_the_links_beside_a_title_come_with_an_address_on_github_and_go_with_it(monkeypatch, tmp_path):
    plain, path, texts = "# 07 · A question?\n\nText.\n\nMore.", tmp_path / "07_a.ipynb", []
    title, code = nbformat.v4.new_markdown_cell(plain), nbformat.v4.new_code_cell("1")
    book = nbformat.v4.new_notebook(cells=[title, code])
    for address in ("", "git+https://github.com/an-owner/a.name@v1.2", "git+https://example.org/elsewhere@v1.2"):
        monkeypatch.setattr(execute, "project", lambda address=address: ("1.2", address))
        execute.place_first_cell(book, path.name)
        texts.append(book.cells[0].source)
        nbformat.write(book, path)
        assert execute.minutes(path) == (1, 0)
        assert address in book.cells[1].source and len(book.cells) == 3
    assert texts[0] == texts[2] == plain
    title, links, *text = texts[1].split("\n\n")
    assert [title, *text] == plain.split("\n\n")
    file = "github/an-owner/a.name/blob/v1.2/notebooks/07_a.ipynb"
    assert re.findall('href="(.*?)".*?>Open in (.*?)<', links) == [
        (f"https://colab.research.google.com/{file}", "Colab"),
        (f"https://kaggle.com/kernels/welcome?src=https://{file.replace('/', '.com/', 1)}", "Kaggle")]


def test_a_wheel_brings_all_that_lessons_need_and_removed_leaves_a_lab_byte_for_byte_as_it_was(wheel, bare):
    lab = bare.parents[1]
    for place in ("etc/jupyter/jupyter_config.json", "etc/ipython/ipython_kernel_config.json",
                  "share/jupyter/lab/settings/overrides.json"):
        (lab / place).parent.mkdir(parents=True, exist_ok=True)
        (lab / place).write_text('{"of": "the lab"}')
    before = contents(lab)
    pip = ["-m", "pip", "--python", bare, "--disable-pip-version-check"]
    code, printed = run(sys.executable, *pip, "install", "--no-index", "--no-compile", wheel, cwd=lab)
    assert code == 0, printed  # its dependencies are there
    after = contents(lab)
    assert {path: after[path] for path in before} == before
    [site] = lab.glob("lib/python*/site-packages")
    new = {(lab / path).relative_to(site).parts[0] for path in after.keys() - before.keys()}
    assert new == {"helpers", "lessons", f"parallel_pytorch_course-{VERSION}.dist-info"}
    code, printed = run(sys.executable, *pip, "uninstall", "--yes", "parallel-pytorch-course", cwd=lab)
    assert code == 0 and contents(lab) == before, printed


A_LESSON = ["from helpers import copy_script, launch",
            "launch('hello.py').results",
            "copy_script('hello.py').write_text('print(6 * 7)')\nlaunch('hello.py').logs",
            "from lessons.start_here import exercises as ex\nprint(ex.mean_of_ranks.check(lambda value: value))",
            ex_right := "print(ex.mean_of_ranks.check(ex.mean_of_ranks.answer))",
            "import time\ndef waits():\n    time.sleep(60)\nlaunch(waits, 1, timeout=2)",
            "launch('train_digits.py', args=['--epochs', 10**6], timeout=3)",
            "from helpers.exercises.catalogue import progress\nfrom helpers.data import Digits\n"
            "len(progress().lessons), len(Digits())",
            "from lessons.mixed_precision.recorded import products\nproducts.show()"]


def test_a_notebook_alone_in_an_empty_folder_installs_the_course_and_works(wheel, bare, empty, monkeypatch):
    cells = [nbformat.v4.new_code_cell(source) for source in (first_cell_of(wheel, monkeypatch), *A_LESSON)]
    for cell in cells[6:8]:
        cell.metadata["tags"] = ["raises-exception"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), empty / "lesson.ipynb")
    code, printed = run(bare, "-c", EXECUTE, cwd=empty, HOME=str(empty.parent), PIP_NO_INDEX="1", PATH="/bin:/usr/bin")
    assert code == 0, printed
    outputs = ["".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") + output.get("evalue", "")
                       for output in cell.outputs)
               for cell in nbformat.read(empty / "lesson.ipynb", as_version=4).cells]
    _, _, hello, mine, wrong, right, hang, script_hangs, shipped, recorded = outputs
    assert "I am rank 0 of 2" in hello and "['42\\n', '42\\n']" in mine
    assert "not yet: The mean" in wrong and "observed: 2 ranks" in wrong and "correct" in right, outputs
    assert "was at `time.sleep(60)` (line 3, in waits)" in hang
    assert re.search(r"was at `.+` \(train_digits\.py line \d+", script_hangs), script_hangs
    assert shipped.endswith(f"({len(LESSONS) - 1}, 1437)") and "TFLOP/s" in recorded
    assert sorted(path.name for path in empty.iterdir()) == ["hello.py", "lesson.ipynb"]


def test_where_there_is_no_address_the_first_cell_says_what_to_do(bare, empty):
    (empty / "cell.py").write_text(execute.first_cell())
    code, printed = run(bare, "cell.py", cwd=empty)
    assert code == 1, printed
    assert printed.count("RuntimeError: The course is not installed in this kernel: its docs/installing.md says") == 1


MADE_FOR = "from helpers import made_for; made_for({!r})"


@pytest.mark.parametrize(("foreign", "says"), [
    ("helpers.py", "cannot import name 'made_for' from 'helpers' ({}/helpers.py)"),
    ("lessons.py", "`import lessons` finds {}/lessons.py, and not the course's {}/notebooks/lessons: rename it"),
    ("lessons/__init__.py", "`import lessons` finds {}/lessons, and not"),
])
def test_another_package_of_that_name_is_named_with_its_file(foreign, says, empty):
    (empty / foreign).parent.mkdir(exist_ok=True)
    (empty / foreign).touch()
    code, printed = run(sys.executable, "-c", MADE_FOR.format(VERSION), cwd=empty)
    assert code == 1 and f"ImportError: {says.format(empty, ROOT)}" in printed, printed


def test_a_notebook_that_is_newer_than_the_course_says_so(empty):
    older, newer = (run(sys.executable, "-c", MADE_FOR.format(version), cwd=empty) for version in ("0.0.9", "9.0"))
    assert older == (0, "")
    assert newer[0] == 0 and f"for version 9.0 of the course, and {ROOT} holds {VERSION}: install the newer" in newer[1]


def test_a_kernel_of_another_copy_of_the_course_is_noticed(tmp_path):
    shutil.copytree(ROOT / "notebooks" / "lessons", tmp_path / "notebooks" / "lessons")
    code, printed = run(sys.executable, "-c", MADE_FOR.format(VERSION), cwd=tmp_path / "notebooks")
    assert code == 0, printed
    assert f"are those of {tmp_path}/notebooks/lessons, and this kernel has the helpers of {ROOT}: changes" in printed


@pytest.mark.parametrize(("torch", "says"), [("2.10.1+cu130", "has torch 2.10.1+cu130, and"), (None, "has no torch.")])
def test_a_torch_that_is_too_old_or_missing_is_named_once(torch, says, bare, wheel, empty):
    [folder] = bare.parents[1].glob("lib/python*/site-packages")
    for entry in folder.glob("torch*"):
        entry.unlink()
    zipfile.ZipFile(wheel).extractall(folder)
    if torch:
        (folder / "torch-0.dist-info").mkdir()
        (folder / "torch-0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}")
    code, printed = run(bare, "-c", MADE_FOR.format(VERSION), cwd=empty)
    assert code == 1 and f"RuntimeError: This kernel {says}" in printed, printed
    code, printed = run(bare, "-c", "from helpers import launch; launch(print)", cwd=empty)
    assert code == 1 and printed.count("No module named 'torch'") == 1, "launch says it once, too"


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    """The Python of an environment like Colab's kernel: the one that COURSE_COLAB names, or a new one (6 GB)."""
    if "COURSE_COLAB" in os.environ:
        python = os.environ["COURSE_COLAB"]
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "parallel-pytorch-course"], check=True)
        return python
    folder = tmp_path_factory.mktemp("colab")
    python = shutil.which("python3.13") or sys.executable
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", "-r", ROOT / "tests" / "colab.txt"], check=True)
    return folder / "bin" / "python"


@pytest.mark.long
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_from_an_empty_folder_in_colabs_kernel(path, colab, wheel, empty, monkeypatch):
    """tests/colab.txt has that kernel's versions. None of them is replaced, and code is shown by its own lines."""
    packages = ["-m", "pip", "freeze", "--disable-pip-version-check"]
    before = set(run(colab, *packages, cwd=empty)[1].splitlines())
    book = nbformat.read(path, as_version=4)
    cells = {cell.id: cell for cell in book.cells}
    cells[execute.FIRST_CELL].source = first_cell_of(wheel, monkeypatch)
    nbformat.write(book, empty / "lesson.ipynb")
    code, printed = run(colab, "-c", EXECUTE, cwd=empty, COURSE_PROGRESS=str(empty / "progress.json"))
    assert code == 0, printed
    assert before <= set(run(colab, *packages, cwd=empty)[1].splitlines()), "nothing was replaced"
    executed = (empty / "lesson.ipynb").read_text(encoding="utf-8")
    assert "at `?`" not in executed, "the line of a cell is named by its code"


def test_copy_script_takes_what_the_script_imports_along_and_overwrites_nothing(empty, monkeypatch):
    from helpers import copy_script

    monkeypatch.chdir(empty)
    assert copy_script("preemptible.py") == empty / "preemptible.py"
    assert sorted(os.listdir()) == ["preemptible.py", "train.py"]
    Path("train.py").write_text("mine")
    copy_script("ddp_in_practice/train.py")
    assert Path("train.py").read_text() == "mine"
    with pytest.raises(FileNotFoundError, match=r"no lesson has a script 'tran.py'. Did you mean 'train"):
        copy_script("tran.py")


def test_the_devcontainer_installs_what_the_readme_says_and_opens_no_door():
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
    config = json.loads(re.sub("^ *//.*", "", text, flags=re.MULTILINE))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search("^    (python3 -m venv .*)", readme, re.MULTILINE)[1]
    assert config["updateContentCommand"] == first.rpartition(" && ")[0]
    assert "token" not in text.replace("asks for its token", "") and "privileged" not in text
    assert "--shm-size=2g" in config["runArgs"] and config["forwardPorts"] == [8888]


def test_all_that_names_a_version_names_the_same():
    """README, pyproject.toml, the workflow and the container; preflight refuses what is older."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    tested = workflow["jobs"]["linux"]["strategy"]["matrix"]["python"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"You need Python {tested[0]} to {tested[-1]}," in readme
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["requires-python"] == f">={tested[0]}"
    assert preflight.TORCH["torch"] == first_cell.OLDEST_TORCH
    assert [f"{major}.{minor}" for major, minor in preflight.PYTHONS] == [tested[0], tested[-1]]
    container = (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
    assert re.search(r"/python:([\d.]+)-", container)[1] in tested
