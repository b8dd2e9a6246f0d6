"""`predict`: a question to answer with one click before the run. The first answer is kept."""

import re
import string
from dataclasses import dataclass
from functools import partial

from helpers.exercises import journal
from helpers.exercises.engine import as_html

# As high as the option needs, and the focus is seen on a light page and on a dark one.
_STYLE = ("<style>.course-option.jupyter-button {width: fit-content; max-width: 100%; height: auto; min-height: 28px; "
          "white-space: normal; text-align: left; line-height: 1.4; padding: 4px 12px} "
          ".course-option.jupyter-button:focus-visible {outline: 3px solid #1976d2; outline-offset: 1px}</style>")


def predict(question, options, answer, key=None):
    """A question whose options say, when one is opened, whether they hold and why.

        predict("Two ranks run `print('hi')`. How many lines appear?",
                {"one": "Every rank runs the whole function.", "two": "Each rank prints its own."}, answer="two")

    The first option that the learner opens is their answer: it is kept in the progress, and shown when the question
    is asked again. That needs a kernel and ipywidgets. Elsewhere the question is HTML alone, which works by mouse and
    keyboard and keeps no state.

    Args:
        question: Text; what stands between backticks is shown as code.
        options: {option: why it holds, or why it does not}.
        answer: The option that holds.
        key: By what the answer is kept. It is `slug(question)` if none is given, so whoever words a question anew
            gives the slug of its old words here, and answers that were given to them still count.

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
    return Quiz(question, tuple(options.items()), answer, key or slug(question))


def slug(question):
    """The letters and digits of a question: not changed by its place, nor by commas, capitals and backticks."""
    return re.sub(r"[\W_]+", "-", question.lower()).strip("-")


@dataclass(frozen=True, repr=False)
class Quiz:
    """A question with lettered options; made by `predict`."""

    question: str
    options: tuple
    answer: str
    key: str

    def _lettered(self):
        return zip(string.ascii_uppercase, self.options, strict=False)

    def _asked(self):
        return f"<p><strong>Predict:</strong> {as_html(self.question)}</p>"

    def _verdict(self, option, why):
        colour, verdict = ("#2e9e4f", "✔ Yes.") if option == self.answer else ("#c77700", "✘ No.")
        return (f'<div style="border-left: 5px solid {colour}; padding: 2px 12px">'
                f"<strong>{verdict}</strong> {as_html(why)}</div>")

    def __repr__(self):
        options = [f"  {letter}) {option}" for letter, (option, _) in self._lettered()]
        return "\n".join([f"Predict: {self.question}", *options])

    def _repr_html_(self):
        return self._asked() + "".join(
            f'<details style="margin: 4px 0"><summary style="cursor: pointer">{letter}) {as_html(option)}</summary>'
            f"{self._verdict(option, why)}</details>" for letter, (option, why) in self._lettered())

    def _repr_mimebundle_(self, **kwargs):
        """The buttons, beside the HTML and the text above, which are what is stored."""
        try:
            buttons = self.buttons()
        except ImportError:  # no ipywidgets
            return {}
        return {**buttons._repr_mimebundle_(**kwargs), "text/plain": repr(self)}

    def buttons(self):
        """A button for each option: the first click is kept, each click opens the option's verdict or closes it."""
        import ipywidgets as widgets

        answered = widgets.HTML()
        verdicts = {option: widgets.HTML() for option, _ in self.options}
        reasons = dict(self.options)

        def toggle(option):
            verdict = verdicts[option]
            opened = f'<div role="status">{self._verdict(option, reasons[option])}</div>'
            verdict.value = "" if verdict.value else opened

        def show(first):
            answered.value = f'<div role="status">Your first answer: <em>{as_html(first["first"])}</em></div>'

        def click(option, _button):
            if not answered.value:
                show(journal.keep_first(self.key, option, option == self.answer))
            toggle(option)

        rows = [widgets.HTML(_STYLE + self._asked())]
        for letter, (option, _) in self._lettered():
            button = widgets.Button(description=f"{letter}) {option.replace('`', '')}")
            button.add_class("course-option")
            button.on_click(partial(click, option))
            rows += [button, verdicts[option]]
        first = journal.first_answers().get(self.key)
        if first:
            show(first)
            if first["first"] in verdicts:
                toggle(first["first"])
        return widgets.VBox([*rows, answered])
