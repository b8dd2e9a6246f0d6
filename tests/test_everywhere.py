"""Wherever a lesson is opened: its first cell, badges, devcontainer, Binder, explorers without ipywidgets."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import nbformat
import pytest

from tests.browser import EXPLORERS
from tests.conftest import ROOT, git
from tools import everywhere, update
from tools.execute import minutes

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ABSENT = "cloudpickle"  # where there shall be something to install
RUN = "exec(open('cell.py').read()); import helpers; print('→', helpers.__file__)"


def run(python, *words, cwd, **environment):
    """Run Python without this environment's paths; return the exit code, and what it printed."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, *map(str, words)], cwd=cwd, env={**clean, **environment}, text=True,
                          timeout=300, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def copied(folder, *without):
    """A copy of the course, as a repository whose files are staged."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", ".venv", "*cache*", *without))
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    return folder


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A copy of what lesson 00 needs, with a public address: a git repository here, at its version."""
    folder = tmp_path_factory.mktemp("public") / "course"
    course = copied(folder, "tests", "docs", "0[1-9]_*.ipynb", "[1-9a-z]*.ipynb")
    code, said = run(sys.executable, "tools/publish.py", course.as_uri(), cwd=course)
    assert code == 0 and course.as_uri() in said, said
    listed = json.loads((course / update.LIST).read_text())
    assert "README.md" in listed and ".git/HEAD" not in listed
    git(course, "add", "-A")
    git(course, "commit", "-qm", "all")
    git(course, "tag", f"v{everywhere.project('version')}")
    return course


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
def bare_without_one(bare):
    """The same, and one of the packages is missing."""
    for entry in bare.parents[1].glob(f"lib/python*/site-packages/{ABSENT}*"):
        entry.unlink()
    return bare


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """What pip needs to install the absent package without a network: a wheel of what is installed here."""
    installed = importlib.metadata.distribution(ABSENT)
    folder = tmp_path_factory.mktemp("packages")
    with zipfile.ZipFile(folder / f"{ABSENT}-{installed.version}-py3-none-any.whl", "w") as wheel:
        for path in installed.files:
            if path.suffix != ".pyc":
                wheel.write(path.locate(), path)
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


def code_of(path):
    return [one for one in nbformat.read(path, as_version=4).cells if one.cell_type == "code"]


def first_cell(course):
    """What stands in a lesson's first code cell."""
    return code_of(course / "notebooks" / LESSONS[0].name)[0].source


def opened(folder, cell):
    """A folder with a notebook's first cell, and somebody else's `helpers` beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "cell.py").write_text(cell)
    (folder / "helpers.py").write_text("raise ImportError('not the one that you are looking for')")
    return folder


def test_every_lesson_begins_with_exactly_this_cell():
    for path in LESSONS:
        code = code_of(path)
        assert [one.id == everywhere.ID for one in code] == [True] + [False] * (len(code) - 1), path
        assert code[0].source == everywhere.cell(), f"{path}: run tools/publish.py"
        assert code[0].metadata["jupyter"] == {"source_hidden": True} and not code[0].outputs
    assert len(everywhere.cell().splitlines()) < 18


def test_a_bare_kernel_fetches_the_course_and_keeps_its_torch(public, bare_without_one, packages, tmp_path):
    folder, home = opened(tmp_path / "opened", first_cell(public)), {"HOME": str(tmp_path)}
    version = everywhere.project("version")
    fetched = tmp_path / ".cache" / f"parallel-pytorch-course-v{version}"

    refused = ("import os, sys\ntry:\n    exec(open('cell.py').read())\nexcept RuntimeError as error:\n"
               "    print(error)\nprint(sys.path[0] == '', 'PYTHONPATH' in os.environ)")
    code, said = run(bare_without_one, "-c", refused, cwd=folder, PIP_NO_INDEX="1", **home)
    assert code == 0 and f"pip could not install them: {ABSENT}. Install them in a terminal" in said, said
    assert "No matching distribution" in said and said.endswith("True False\n"), "nothing was changed"

    # From here on git is not there: what was fetched is fetched.
    child = ("import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', "
             "'import cloudpickle, helpers; print(helpers.__file__)'], text=True, cwd='/'))")
    code, said = run(bare_without_one, "-c", f"{RUN}; {child}", cwd=folder, PATH="", **packages, **home)
    first, second = (f"The course, version {version}, is in {fetched}.",
                     f"This kernel keeps its torch {importlib.metadata.version('torch')}.")
    imported = f"{fetched}/helpers/__init__.py"
    lines = [first, f"{second} Installed: {ABSENT}.", f"→ {imported}", imported, ""]
    assert code == 0 and said.splitlines() == lines, said
    code, said = run(bare_without_one, "-c", RUN, cwd=folder, PATH="", **home)  # the kernel was restarted
    assert code == 0 and said.splitlines() == [first, second, f"→ {imported}"], said


def test_a_course_beside_the_notebook_is_taken_without_git(public, bare, tmp_path):
    opened(public / "notebooks", first_cell(public))
    try:
        code, said = run(bare, "-c", RUN, cwd=public / "notebooks", HOME=str(tmp_path), PATH="")
    finally:
        for name in ("cell.py", "helpers.py"):
            (public / "notebooks" / name).unlink()
    assert code == 0 and f"→ {public}/helpers/__init__.py" in said, said


@pytest.mark.parametrize(("old", "new", "environment", "says"), [
    ("file:/", "https://127.0.0.1:9/", {}, "Are there git, and a network"),  # where nothing answers
    ("", "", {"PATH": ""}, "No such file or directory: 'git'"),
])
def test_a_course_that_cannot_be_fetched(old, new, environment, says, public, bare, tmp_path):
    assert old in first_cell(public)
    folder = opened(tmp_path / "opened", first_cell(public).replace(old, new))
    code, said = run(bare, "-c", RUN, cwd=folder, HOME=str(tmp_path), **environment)
    assert code == 1 and "RuntimeError: " in said and says in said, said
    assert not list(tmp_path.glob(".cache/*"))


def test_where_there_is_no_address_the_cell_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(everywhere, "project", {"Repository": "", "version": "1.2"}.get)
    monkeypatch.setitem(sys.modules, "helpers", None)
    with pytest.raises(RuntimeError, match="Install it as its README says under Start"):
        exec(everywhere.cell(), {})


@pytest.mark.parametrize(("torch", "says"), [
    ("2.10.1+cu130", "this kernel has 2.10.1+cu130"), (None, "has none")])
def test_a_torch_that_is_too_old_or_missing_is_left_alone(torch, says, public, bare, tmp_path):
    set_up = f"import runpy; runpy.run_path({str(public / 'tools' / 'everywhere.py')!r})['set_up']()"
    if torch:
        metadata = tmp_path / "torch-0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}")
    words = ["-c", set_up] if torch else ["-S", "-c", set_up]  # without site-packages
    code, said = run(bare, *words, cwd=tmp_path, PYTHONPATH=str(tmp_path), PATH="", PIP_NO_INDEX="1")
    assert code == 1 and "RuntimeError: The course needs torch 2.11 or newer, and this kernel has" in said
    assert says in said, said


def test_badges_come_with_an_address_on_github_and_go_with_it(monkeypatch, tmp_path):
    plain, path, texts = "# 07 · A question?\n\nText.\n\nMore.", tmp_path / "07_a.ipynb", []
    title, code = nbformat.v4.new_markdown_cell(plain), nbformat.v4.new_code_cell("1")
    book = nbformat.v4.new_notebook(cells=[title, code])
    for address in ("", "https://github.com/an-owner/a.name", "https://example.org/elsewhere"):
        monkeypatch.setattr(everywhere, "project", {"Repository": address, "version": "1.2"}.get)
        everywhere.place(book, path.name)
        texts.append(book.cells[0].source)
        nbformat.write(book, path)
        assert minutes(path) == (1, 0)
        assert f'address, version, script = "{address}", "v1.2", ' in book.cells[1].source
    assert texts[0] == texts[2] == plain
    title, badges, *text = texts[1].split("\n\n")
    assert [title, *text] == plain.split("\n\n")
    file = "github/an-owner/a.name/blob/v1.2/notebooks/07_a.ipynb"
    assert re.findall('href="(.*?)".*?>Open in (.*?)<', badges) == [
        (f"https://colab.research.google.com/{file}", "Colab"),
        (f"https://kaggle.com/kernels/welcome?src=https://{file.replace('/', '.com/', 1)}", "Kaggle"),
        ("https://mybinder.org/v2/gh/an-owner/a.name/v1.2?labpath=notebooks%2F07_a.ipynb", "Binder")]


@pytest.mark.long
def test_a_lesson_opened_anywhere_launches_ranks(public, bare_without_one, packages, tmp_path):
    """Lesson 00 alone in a folder, in a kernel without the course, up to a launch that returns something."""
    book = nbformat.read(public / "notebooks" / LESSONS[0].name, as_version=4)
    last = next(number for number, one in enumerate(book.cells) if one.source.endswith("run.results"))
    book.cells = book.cells[:last + 1]
    stored = book.cells[-1].outputs[-1].data["text/plain"]
    folder = tmp_path / "opened"
    folder.mkdir()
    nbformat.write(book, folder / "lesson.ipynb")
    execute = ("import nbformat, nbclient; book = nbformat.read('lesson.ipynb', 4); "
               "nbclient.NotebookClient(book, timeout=600, kernel_name='python3').execute(); "
               "nbformat.write(book, 'done.ipynb')")
    code, said = run(bare_without_one, "-c", execute, cwd=folder, HOME=str(tmp_path),
                     JUPYTER_DATA_DIR=str(tmp_path / "jupyter"), **packages)
    assert code == 0, said
    code = code_of(folder / "done.ipynb")
    assert f"is in {tmp_path}/.cache/" in code[0].outputs[0].text and ABSENT in code[0].outputs[0].text
    assert code[-1].outputs[-1].data["text/plain"] == stored


@pytest.mark.long
def test_published_lessons_pass_the_tests_of_lessons(tmp_path):
    """With an address on GitHub, badges too; and again when it goes on to another one."""
    course = copied(tmp_path / "course")
    for address in ("https://github.com/OWNER/NAME", "https://github.com/other/place.git"):
        code, said = run(sys.executable, "tools/publish.py", address, cwd=course)
        assert code == 0, said
        code, said = run(
            sys.executable, "-m", "pytest", "-q", "-n0", "-o", "addopts=", "tests/test_notebooks.py",
            "tests/test_readme.py", "tests/test_everywhere.py", "-k",
            "test_notebooks or normalising or row_of_a_lesson or every_lesson_begins",
            cwd=course, PYTHONPATH=str(course))
        assert code == 0, said
    title = nbformat.read(course / "notebooks" / LESSONS[5].name, as_version=4).cells[0].source
    assert title.count("Open in Colab") == 1 and "github/other/place/blob" in title


def test_the_devcontainer_installs_what_the_readme_says_and_opens_no_door():
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
    config = json.loads(re.sub("^ *//.*", "", text, flags=re.MULTILINE))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search("^    (python3 -m venv .*)", readme, re.MULTILINE)[1]
    assert config["updateContentCommand"] == first.rpartition(" && ")[0]
    assert "token" not in text.replace("asks for its token", "") and "privileged" not in text
    assert "--shm-size=2g" in config["runArgs"] and config["forwardPorts"] == [8888]


def test_binder_installs_what_learners_need(tmp_path):
    """Its script with stand-ins for pip and uv, which write down what they are given."""
    for name in ("pip", "uv", "python"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*"\ncase "$*" in *"-r -") cat ;; esac\n')
        (tmp_path / name).chmod(0o755)
    said = subprocess.check_output([ROOT / ".binder" / "postBuild"], cwd=ROOT, text=True, timeout=60,
                                   env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    commands = [line for line in said.splitlines() if re.match("pip |uv ", line)]
    assert commands == [
        "pip install uv", f"uv pip install --python {tmp_path}/python --torch-backend=cpu -r -"]
    names = re.findall(r"^([\w-]+)==", said, re.MULTILINE)
    assert names == ["torch", "torchvision", *everywhere._small_packages()] and said.endswith("\n-e .\n")


PANEL = {"panel": "from helpers.widgets.launch_panel import launch_panel\nlaunch_panel('hello.py')"}


@pytest.mark.parametrize(
    "explorers", [PANEL, pytest.param(EXPLORERS, marks=pytest.mark.long)], ids=["one", "all"])
def test_explorers_show_their_picture_where_there_are_no_ipywidgets(explorers, tmp_path):
    lines = ["import json, sys", "sys.modules['ipywidgets'] = None", "shown = {}"]
    for name, source in explorers.items():
        *before, last = source.splitlines()
        lines += [*before, f"data, more = ({last})._repr_mimebundle_()",
                  "assert data['image/png'].startswith(b'\\x89PNG')",
                  f"shown[{name!r}] = [sorted(data), more['image/png']['alt']]"]
    lines += ["json.dump(shown, open('shown.json', 'w'))"]
    (tmp_path / "all.py").write_text("\n".join(lines))
    code, said = run(sys.executable, "all.py", cwd=tmp_path, OMP_NUM_THREADS="1",
                     PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'notebooks'}")
    assert code == 0 and "ipywidgets is not installed here" in said, said
    shown = json.loads((tmp_path / "shown.json").read_text())
    assert list(shown) == list(explorers)
    for kinds, alt in shown.values():
        assert kinds == ["image/png", "text/plain"] and len(alt) > 20
