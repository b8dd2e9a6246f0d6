"""The speed ladder as data: `slow.py`, and in `rungs.diff` what each rung changes, in order.

    for rung in rungs(fast_bf16=True):
        print(rung.number, rung.title)
        print(rung.diff)

`rungs.diff` is a diff without line numbers: "# Title | lesson" (no lesson where none teaches it), then hunks
between lines of "@@", whose lines begin with "-", "+" or a space. What a hunk takes away has to stand exactly
once in the script that the rungs before left. data/records/speed_ladder.json says which rungs are kept.
"""

import difflib
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from helpers.places import RECORDS
from helpers.records import stored

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: a script of its own, and what it changes."""

    number: int
    """0 for the slow script."""
    title: str
    lesson: str
    """The number of the lesson that its technique is from, as text; empty where there is none."""
    source: str
    """The whole script."""
    before: str = ""
    """The script that it changes."""
    kept: bool = True
    """Whether the rungs above build on it."""

    @property
    def nprocs(self):
        """The ranks that its script is written for."""
        return 2 if "init_process_group" in self.source else 1

    @property
    def diff(self):
        """The changed lines, as difflib finds them, each hunk with the line before and after it."""
        lines = difflib.unified_diff(self.before.splitlines(), self.source.splitlines(), n=1, lineterm="")
        _, _, *hunks = lines  # the first two name files
        # `changed` finds a hunk by its text, so line numbers would only distract.
        return "\n".join(re.sub("^@@.*", "@@", line) for line in hunks)

    @property
    def changed_lines(self):
        """How many lines it takes away and adds."""
        return sum(line[0] in "+-" for line in self.diff.splitlines())


def changed(source, hunks):
    """`source` with hunks applied: lines that begin with "-", "+" or a space, parted by lines of "@@".

    Raises:
        ValueError: what a hunk takes away does not stand in `source`, or more than once.
    """
    for hunk in re.split(r"^@@.*(?:\n|$)", hunks, flags=re.MULTILINE):
        lines = [line for line in hunk.splitlines() if line]
        if not lines:
            continue
        for line in lines:
            if line[0] not in " +-":
                raise ValueError(f"this line begins with none of `+`, `-` and a space: {line}")
        old = "\n".join(line[1:] for line in lines if line[0] in " -")
        new = "\n".join(line[1:] for line in lines if line[0] in " +")
        if not old.strip():
            raise ValueError("this hunk names no line of the script: a line with `-`, or one with a space, "
                             "says where")
        count = source.count(old)
        if count != 1:
            spaces = "" if count else " (are the spaces after the sign those of the script?)"
            raise ValueError(f"these lines stand {count} times in the script; "
                             f"they must stand there once{spaces}:\n{old}")
        if not new:
            old += "\n"  # lines that go leave no empty line behind
        source = source.replace(old, new)
    return source


@cache
def record():
    """What tests/benchmarks/speed_ladder.py has measured: each rung beside the one below it, in turns."""
    return stored(RECORDS / "speed_ladder.json")


def gains(turns):
    """How many times as fast the rung was as the one below it, one number for each turn."""
    return [slow / fast for slow, fast in zip(turns["below"], turns["rung"], strict=True)]


def helps(turns):
    """Whether a rung is kept: it was more than 1 % faster than the one below it in at least four of five turns."""
    return sorted(gains(turns))[1] > 1.01  # something else on the machine may disturb one turn


def recorded_as_helpful(rung):
    turns = record()["rungs"].get(rung.title)
    return turns is not None and helps(turns)


def rungs(fast_bf16, keep=recorded_as_helpful):
    """All rungs in the order in which they are tried. Each changes the last one below it that is kept.

    Args:
        fast_bf16: Whether the processor has units for bfloat16; without them that rung is not kept.
        keep: Called with each rung in turn; returns whether it is kept.
    """
    source = (FOLDER / "slow.py").read_text(encoding="utf-8")
    ladder = [Rung(0, "The slow script", "", source)]
    diffs = (FOLDER / "rungs.diff").read_text(encoding="utf-8")
    for block in re.split(r"^# ", diffs, flags=re.MULTILINE)[1:]:
        head, _, hunks = block.partition("\n")
        title, lesson = map(str.strip, head.split("|"))
        rung = Rung(len(ladder), title, lesson, changed(source, hunks), source)
        if not keep(rung) or (title == "bfloat16" and not fast_bf16):
            rung = replace(rung, kept=False)
        ladder.append(rung)
        if rung.kept:
            source = rung.source
    return ladder


def own_rung(top, hunks, title="Your own"):
    """A rung of the reader's own on top of `top`.

    Raises:
        ValueError: as of `changed`; or nothing is changed, or the script is no Python any more.
    """
    source = changed(top.source, hunks)
    if source == top.source:
        raise ValueError("these hunks change nothing")
    try:
        compile(source, "rung.py", "exec")
    except SyntaxError as error:
        raise ValueError(f"with this change the script is no Python, line {error.lineno}: {error.msg}: "
                         f"{(error.text or '').strip()}") from None
    return Rung(top.number + 1, title, "", source, top.source)
