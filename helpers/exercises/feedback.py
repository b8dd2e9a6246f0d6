"""What a check answers, and how it looks in a notebook and in a terminal."""

import html
import re
import textwrap
from dataclasses import dataclass

from helpers.exercises import journal

NOT_ATTEMPTED, NOT_YET, CORRECT = journal.STATUSES

# Middle tones, readable as a border on white and on black. The sign and the words say the same without them.
RIGHT, WRONG = "#2e9e4f", "#c77700"  # the colours of what holds, and of what does not
_LOOK = {NOT_ATTEMPTED: ("○", "#808080"), NOT_YET: ("✘", WRONG), CORRECT: ("✔", RIGHT)}

#: A row of feedback is cut off after as many characters. Our own words need half of it, but a learner may return a
#: megabyte.
_LONGEST = 600


@dataclass(frozen=True, repr=False)
class Feedback:
    """The answer of a check. True if it is "correct"; two executions of the same check read the same."""

    status: str
    """"not attempted", "not yet" or "correct"."""
    observed: str = ""
    expected: str = ""
    where_to_look: str = ""
    why_it_matters: str = ""
    title: str = ""
    logs: tuple = ()
    """By rank: what the learner's code printed."""

    def __bool__(self):
        return self.status == CORRECT

    def _rows(self):
        rows = {"observed": self.observed, "expected": self.expected, "where to look": self.where_to_look,
                "why it matters": self.why_it_matters}
        for rank, log in enumerate(self.logs):
            if log:
                rows["printed"] = f"`print(_.logs[{rank}])` in the next cell shows what rank {rank} printed"
                break
        return {name: _shown(text) for name, text in rows.items() if text}

    def __repr__(self):
        sign, _ = _LOOK[self.status]
        lines = [f"{sign} {self.status}: {self.title}"]
        for name, text in self._rows().items():
            lines.append(textwrap.indent(f"{name}: {text}", "    ").lstrip())
        return "\n  ".join(lines)

    def _repr_html_(self):
        sign, colour = _LOOK[self.status]
        rows = "".join(f'<div style="white-space: pre-wrap"><em>{name}:</em> {as_html(text)}</div>'
                       for name, text in self._rows().items())
        return (f'<div style="border-left: 5px solid {colour}; padding: 2px 12px">'
                f"<strong>{sign} {self.status}:</strong> {as_html(self.title)}{rows}</div>")


def not_yet(observed, expected, where_to_look=""):
    """The feedback on a wrong answer. Text between backticks is shown as code."""
    return Feedback(NOT_YET, observed, expected, where_to_look)


def cause(feedback):
    """A name for all who made the same mistake: where to look, without numbers and the learner's code."""
    text = feedback.where_to_look
    if not text or re.search(r"\bline \d", text):  # of their own code
        text = re.sub("`[^`]*`", "`…`", feedback.observed)
        text = re.sub(r"(?<= raised )(\w+).*|, in \w+(?=\))", r"\1", text)
    return re.sub(r"\d+([.,]\d+)*", "#", text.partition("\n")[0])[:120]


def kind_of(value):
    """A value's type, in words: "None", "a list", "an int"."""
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[0] in "aeioAEIO" else "a"
    return f"{article} {name}"


def as_html(text):
    """Plain text with `code` between backticks, as HTML."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _shown(text):
    """The text without what differs every time, an address or a run's folder; and not all of it, if it is long."""
    text = re.sub(r"\b0x[0-9a-f]{6,}", "0x…", text)
    text = re.sub(r"(?<![^\s'\"`])[^\s'\"`]*/helpers-ranks-[\w-]+/", "…/", text)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({len(text) - _LONGEST:,} more characters)"
