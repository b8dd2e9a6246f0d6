"""python -m helpers.exercises: what the learner has solved and predicted; with --clear, forget it."""

import argparse
import os

from helpers.exercises import journal, progress

parser = argparse.ArgumentParser(prog="python -m helpers.exercises", description="Your progress in the course.")
parser.add_argument("--clear", action="store_true", help="remove the files that hold it, and say which")
clear = parser.parse_args().clear
print(progress())
for file in journal.files():
    if clear:
        os.remove(file)
    print(f"{'removed' if clear else '--clear would remove'} {file}")
