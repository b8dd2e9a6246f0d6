"""tools/update.py, by git and by download: newer lessons come, and nothing of a learner's is lost."""

import json
import shutil
import subprocess
import sys

import nbformat
import pytest

from helpers.exercises import journal
from tests.conftest import LESSONS, ROOT, git
from tools import update

FILES = [".gitignore", "tools/update.py", "requirements.txt",
         *(f"notebooks/{path.name}" for path in LESSONS[:3]), "notebooks/lessons/start_here/train_digits.py",
         "notebooks/lessons/start_here/hello.py", "notebooks/lessons/start_here/pictures.py"]
RUN, ALSO_RUN, UNTOUCHED = FILES[3:6]
WORKER, REMOVED, DELETED = FILES[6:]


def changed(file, cell, source):
    """Another source for the first code cell that contains `cell`, as its author or a learner writes it."""
    book = nbformat.read(file, as_version=4)
    next(one for one in book.cells if cell in one.source).source = source
    nbformat.write(book, file)


def updated(folder, *words, status=0):
    done = subprocess.run([sys.executable, "tools/update.py", *map(str, words)], cwd=folder, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == status, done.stdout
    return done.stdout


def cloned(author, folder):
    git(author.parent, "clone", "-q", author, folder)
    return folder


def commits(author):
    git(author, "add", "-A")
    git(author, "commit", "-qm", "newer")


@pytest.fixture
def author(tmp_path):
    """The course's repository: some of its files, and a commit."""
    folder = tmp_path / "author"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    git(tmp_path, "init", "-q", "-b", "main", "author")
    commits(folder)
    return folder


def downloaded(author, folder):
    """The course as a folder, without git, with the list that tools/publish.py writes."""
    git(author, "archive", "-o", folder.with_suffix(".zip"), "HEAD")
    shutil.unpack_archive(folder.with_suffix(".zip"), folder)
    (folder / update.LIST).write_text(json.dumps(update.checksums(folder)))
    return folder


@pytest.mark.parametrize("way", ["git", "download"])
def test_nothing_of_the_learners_is_lost_and_everything_new_is_there(author, tmp_path, way):
    mine = tmp_path / "mine here"
    if way == "git":
        cloned(author, mine)
    else:
        downloaded(author, mine)

    journal.record("start_here.mean_of_ranks", "correct")
    solved = "def mean_of_ranks(value):\n    return 42.0"
    changed(mine / RUN, "def mean_of_ranks", solved)
    changed(mine / ALSO_RUN, "Process", "# my own try")
    (mine / WORKER).write_text("print('mine')")
    (mine / DELETED).unlink()
    (mine / "notebooks/notes.md").write_text("my notes")
    (mine / "notebooks/todo.md").write_text("mine alone")
    if way == "git":
        git(mine, "add", "-A")  # an editor that stages does no harm

    changed(author / RUN, "You want to train", "You want to train on very many GPUs.")
    changed(author / UNTOUCHED, "local_model", "# corrected")
    (author / WORKER).write_text("print('the course')")
    (author / REMOVED).unlink()
    (author / "requirements.txt").write_text("torch==3")
    (author / "notebooks/notes.md").write_text("the course's notes")
    commits(author)
    words = [] if way == "git" else [downloaded(author, tmp_path / "newer")]

    said = updated(mine, *words)
    assert "6 files of the course are new. Yours that stay: " in said
    assert "install -r requirements.txt" in said
    for name in (RUN, UNTOUCHED, WORKER, "notebooks/notes.md", "requirements.txt"):
        assert (mine / name).read_bytes() == (author / name).read_bytes(), name
    assert not (mine / REMOVED).exists() and not (mine / DELETED).exists() and DELETED in said
    assert solved in [cell.source for cell in nbformat.read(mine / "mine" / RUN, as_version=4).cells]
    assert "# my own try" in (mine / ALSO_RUN).read_text() and ALSO_RUN in said
    assert (mine / f"mine/{WORKER}").read_text() == "print('mine')"
    assert (mine / "mine/notebooks/notes.md").read_text() == "my notes"
    assert (mine / "notebooks/todo.md").read_text() == "mine alone"
    kept = sorted(path.name for path in (mine / "mine").rglob("*") if path.is_file())
    assert kept == [LESSONS[0].name, "notes.md", "train_digits.py"]
    assert journal.best_status() == {"mean_of_ranks": "correct"}
    assert updated(mine, *words).startswith("0 files of the course are new.")


def test_a_second_copy_gets_a_name_of_its_own_and_own_commits_are_left_to_their_author(author, tmp_path):
    mine = cloned(author, tmp_path / "clone")
    for turn in (1, 2):
        (mine / WORKER).write_text(f"mine, {turn}")
        (author / WORKER).write_text(f"the course's, {turn}")
        commits(author)
        updated(mine)
    copies = sorted((mine / f"mine/{WORKER}").parent.iterdir())
    assert [path.read_text() for path in copies] == ["mine, 2", "mine, 1"]
    (mine / WORKER).write_text("a commit of mine")
    git(mine, "commit", "-qam", "mine")
    assert "You have commits of your own" in updated(mine, status=1)
    assert (mine / WORKER).read_text() == "a commit of mine"


def test_what_cannot_be_an_update_is_refused(author, tmp_path):
    mine = cloned(author, tmp_path / "clone")
    (mine / ".git/index.lock").touch()
    assert "delete that file, and run this again" in updated(mine, status=1)
    (mine / ".git/index.lock").unlink()
    git(mine, "checkout", "-q", "--detach")
    assert "git switch main" in updated(mine, status=1)
    assert "git rev-list: fatal: no upstream configured" in updated(author, status=1)
    shutil.rmtree(author / ".git")
    assert "is no git clone. Download a newer one" in updated(author, status=1)
    (tmp_path / "empty").mkdir()
    assert "empty is not the folder of a course" in updated(author, tmp_path / "empty", status=1)


def test_a_newer_folder_that_was_worked_in_does_not_make_a_learners_files_the_courses(author, tmp_path):
    mine, newer = downloaded(author, tmp_path / "mine"), downloaded(author, tmp_path / "newer")
    (newer / WORKER).write_text("mine")
    assert "is this folder itself" in updated(newer, ".", status=1)
    updated(mine, newer)
    (author / WORKER).write_text("the course's")
    commits(author)
    updated(mine, downloaded(author, tmp_path / "newest"))
    assert (mine / f"mine/{WORKER}").read_text() == "mine"


def test_a_copy_without_a_list_says_so_and_one_that_may_only_be_read_is_replaced(author, tmp_path):
    mine = downloaded(author, tmp_path / "mine")
    (mine / update.LIST).write_text("half a li")
    (mine / WORKER).write_text("mine")
    (mine / "requirements.txt").chmod(0o444)
    (author / "requirements.txt").write_text("newer")
    commits(author)
    assert "nobody knows what you have changed" in updated(mine, downloaded(author, tmp_path / "newer"))
    assert (mine / f"mine/{WORKER}").read_text() == "mine"
    assert (mine / "requirements.txt").read_text() == "newer"


def test_a_file_of_the_learners_that_git_ignores_is_kept(author, tmp_path):
    mine = cloned(author, tmp_path / "clone")
    (mine / ".git/info/exclude").write_text("notes.md")
    (mine / "notes.md").write_text("mine")
    (author / "notes.md").write_text("the course's")
    commits(author)
    assert "Yours is now" in updated(mine)
    assert (mine / "mine/notes.md").read_text() == "mine"
    assert (mine / "notes.md").read_text() == "the course's"
