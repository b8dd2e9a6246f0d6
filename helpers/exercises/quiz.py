"""`predict`: a question to answer with one click before the run."""

import string
from dataclasses import dataclass

from helpers.exercises.engine import as_html


def predict(question, options, answer):
    """A question whose options say, when one is opened, whether they hold and why.

        predict("Two ranks run `print('hi')`. How many lines appear?",
                {"one": "Every rank runs the whole function.", "two": "Each rank prints its own."}, answer="two")

    It is HTML alone: it works by mouse and keyboard, with no kernel, and keeps no state.

    Args:
        question: Text; what stands between backticks is shown as code.
        options: {option: why it holds, or why it does not}.
        answer: The option that holds.

    Raises:
        TypeError: `options` is not a dict, or something in it, or the question, is not text.
        ValueError: something is empty, there are fewer than two options or too many, or `answer` is none of them.
    """
    if not isinstance(options, dict):
        raise TypeError(f"options must be a dict {{option: why}}, not a {type(options).__name__}")
    for text in (question, *options, *options.values()):
        if not isinstance(text, str):
            raise TypeError(f"question, options and their reasons are text, not {text!r:.80}")
        if not text.strip():
            raise ValueError("question, options and their reasons must not be empty")
    if not 2 <= len(options) <= len(string.ascii_uppercase):
        raise ValueError(f"a question has 2 to {len(string.ascii_uppercase)} options, not {len(options)}")
    if answer not in options:
        raise ValueError(f"the answer {answer!r} is none of the options: {', '.join(map(repr, options))}")
    return Quiz(question, tuple(options.items()), answer)


@dataclass(frozen=True, repr=False)
class Quiz:
    """A question with lettered options; made by `predict`."""

    question: str
    options: tuple
    answer: str

    def _lettered(self):
        return zip(string.ascii_uppercase, self.options, strict=False)

    def __repr__(self):
        options = [f"  {letter}) {option}" for letter, (option, _) in self._lettered()]
        return "\n".join([f"Predict: {self.question}", *options])

    def _repr_html_(self):
        shown = [f"<p><strong>Predict:</strong> {as_html(self.question)}</p>"]
        for letter, (option, why) in self._lettered():
            colour, verdict = ("#2e9e4f", "✔ Yes.") if option == self.answer else ("#c77700", "✘ No.")
            shown.append(f'<details style="margin: 4px 0"><summary style="cursor: pointer">{letter}) {as_html(option)}'
                         f'</summary><div style="border-left: 5px solid {colour}; padding: 2px 12px">'
                         f"<strong>{verdict}</strong> {as_html(why)}</div></details>")
        return "".join(shown)
