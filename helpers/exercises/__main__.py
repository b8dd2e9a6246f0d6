"""python -m helpers.exercises: what the learner has solved and predicted; --clear forgets it.

In a notebook: `%run -m helpers.exercises -- --clear`.
`export` and `summary` are for a class (classroom.py).
"""

import argparse
import os

from helpers.exercises import classroom, journal, progress

parser = argparse.ArgumentParser("python -m helpers.exercises", description="Your progress in the course.")
parser.add_argument("--clear", action="store_true", help="remove the files that hold it, and say which")
commands = parser.add_subparsers(dest="command")
export = commands.add_parser("export", help="write it into a file, for who teaches you: no code is in it")
export.add_argument("file")
export.add_argument("--name", nargs="+", default=["nobody"], help="the name that the file shall bear")
summary = commands.add_parser("summary", help="for who teaches: read a folder of such files")
summary.add_argument("folder")
summary.add_argument("--lesson", help="with which the page begins, such as 05; else the one where most learners are")
chosen = parser.parse_args()
if chosen.command == "export":
    classroom.export(chosen.file, " ".join(chosen.name))
elif chosen.command == "summary":
    classroom.summary(chosen.folder, chosen.lesson)
else:
    print(progress())
    for file in journal.files():
        if chosen.clear:
            os.remove(file)
            print(f"removed {file}")
        else:
            print(f"--clear would remove {file}")
