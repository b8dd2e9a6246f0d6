"""Bring newer lessons into this copy of the course, and keep what the learner has run, solved and written.

    python3 tools/update.py             in a git clone
    python3 tools/update.py FOLDER      in a downloaded course: the folder of a newer one

What only you have changed stays. What only the course has changed comes. Where both have changed a file,
yours moves to the folder mine/, and the new one takes its place. Your progress lies elsewhere and stays.
It needs the standard library alone, so that it also mends a course that does not run.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: {path: checksum} of the course as it was at the last update.
LIST = "tools/files.json"
NOT_THE_COURSE = {".git", ".venv", "__pycache__", ".ipynb_checkpoints", "mine"}
#: What to do about it, by words of git's errors.
CURES = {".lock": "Another git runs, or was cut off. If none runs, delete that file, and run this again.",
         "does not point to a branch": "Run this first: git switch main"}


def by_git():
    """Move to the newest commit of the branch that this clone follows; return what changes and what stays."""
    _git("fetch", "--quiet")
    if _git("rev-list", "@{upstream}..HEAD"):
        raise SystemExit("You have commits of your own. Merge them yourself: git merge @{upstream}")
    theirs = _names("diff", "--name-only", "--no-renames", "HEAD", "@{upstream}")
    _git("reset", "--quiet")  # what is staged stays in its file
    tracked, others = _names("ls-files"), _names("ls-files", "--others", "--exclude-standard")
    mine = _names("diff", "--name-only", "--no-renames", "HEAD") | others
    mine |= {path for path in theirs - tracked if (ROOT / path).is_file()}  # git overwrites what it ignores
    for path in sorted(mine & theirs):
        if (ROOT / path).exists():
            _keep(path)
        if path in tracked:
            _git("checkout", "--quiet", "HEAD", "--", path)
    _git("merge", "--quiet", "--ff-only", "@{upstream}")
    return theirs, mine - theirs


def by_download(new):
    """Take over what is in the folder `new`; return what it changes, and what stays."""
    before, here, after = _listed(ROOT), checksums(ROOT), checksums(new)
    theirs, stays = set(), set()
    if before:
        stays = set(here) - set(before) - set(after)  # yours alone
    else:
        before = {}
        print(f"There is no {LIST} here, so nobody knows what you have changed: "
              "all that differs moves to mine/.")
    for path in sorted({*before, *after}):
        if here.get(path) == after.get(path):
            continue
        if before.get(path) == after.get(path):
            stays.add(path)
            continue
        theirs.add(path)
        if here.get(path) not in (None, before.get(path)):
            _keep(path)
        (ROOT / path).unlink(missing_ok=True)  # first, for it may be a file that may only be read
        if path in after:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(new / path, ROOT / path)
    # What was changed or written in `new` is somebody's: the next update must not take it for the course's.
    (ROOT / LIST).write_text(json.dumps(_listed(new) or after, indent=0), encoding="utf-8")
    return theirs, stays


def _listed(folder):
    """What the folder's own list says; None if it has none that can be read."""
    try:
        return json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def checksums(folder):
    """{path: checksum} of all files of the course in a folder."""
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {name.as_posix(): checksum(folder / name) for name in names
            if not NOT_THE_COURSE.intersection(name.parts) and name.as_posix() != LIST}


def checksum(path):
    """Of a file. Line ends do not count: on Windows, git writes other ones."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def _keep(path):
    """Move the learner's file into mine/, where its path is the same, or has a number if that is taken."""
    old, number = ROOT / path, 1
    new = ROOT / "mine" / path
    while new.exists():
        number += 1
        new = new.with_name(f"{old.stem} {number}{old.suffix}")
    new.parent.mkdir(parents=True, exist_ok=True)
    old.replace(new)
    print(f"{path}: the course has changed it, too. Yours is now {new.relative_to(ROOT)}")


def _git(*words):
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        cures = [cure for sign, cure in CURES.items() if sign in done.stderr]
        raise SystemExit("\n".join([f"git {words[0]}: {done.stderr.strip()}", *cures]))
    return done.stdout


def _names(*words):
    return set(filter(None, _git(*words, "-z").split("\0")))


def main(download=None):
    if download is None:
        if not (ROOT / ".git").exists():
            raise SystemExit("This course is no git clone. Download a newer one, unpack it, "
                             "and name its folder.")
        if not shutil.which("git"):
            raise SystemExit("This course is a git clone, and there is no command `git`: install git.")
        theirs, stays = by_git()
    else:
        if not Path(download, "tools", "update.py").exists():
            raise SystemExit(f"{download} is not the folder of a course, which holds its README.md.")
        if Path(download).resolve() == ROOT:
            raise SystemExit("That is this folder itself. Unpack the newer course elsewhere, "
                             "and name its folder.")
        theirs, stays = by_download(Path(download))
    print(f"{len(theirs)} files of the course are new. "
          f"Yours that stay: {', '.join(sorted(stays)) or 'none'}.")
    if theirs:
        print("Close and open lessons that are open, and restart their kernels.")
    if "requirements.txt" in theirs:
        print("The packages have changed: .venv/bin/pip install -r requirements.txt")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        raise SystemExit("Cut off. Run it again: nothing is lost.") from None
