"""`predict`: a question to bet on before a cell is run; `bet` shows the bet beside that cell's result.

The questions of a lesson stand in its folder, in `questions.py`:

    QUESTIONS = {
        "two_prints": ("Two ranks run `print('hi')`. How many lines appear?", {
            "two": "Each rank prints its own line.",  # the first option holds; learners see them shuffled
            "one": "Every rank runs the whole function.",
        }),
    }
"""

import functools
import hashlib
import importlib
import string
from dataclasses import dataclass
from functools import partial

from helpers.exercises import journal
from helpers.exercises.feedback import RIGHT, WRONG, as_html
from helpers.places import LESSONS
from helpers.widgets import line_when_gone, view

# As high as the option needs, and the focus is seen on a light page and on a dark one.
_STYLE = """<style>
.course-option.jupyter-button {width: fit-content; max-width: 100%; height: auto; min-height: 28px;
    white-space: normal; text-align: left; line-height: 1.4; padding: 4px 12px}
.course-option.jupyter-button:focus-visible {outline: 3px solid #1976d2; outline-offset: 1px}
.course-closed.jupyter-button {opacity: 0.7; cursor: default; box-shadow: none}
</style>"""
_GONE = ("The kernel was restarted or shut down. To bet, or to see your bet, run the lesson's first cells, then "
         "this one. If a name is missing, the error says which cell makes it.")


def predict(key):
    """The question `key` of a lesson. The first click on an option is the learner's bet, and is kept."""
    if key not in asked():
        raise ValueError(f"no lesson has a question {key!r}")
    return asked()[key]


def bet(key):
    """Stands first in the cell that answers `predict(key)`: shows the bet above the result, the answer below.

    In stored notebooks the output of a cell whose first line this is stays hidden until the cell runs.
    """
    from IPython import get_ipython
    from IPython.display import HTML, Markdown, display

    quiz = predict(key)
    shell = get_ipython()
    first = _first_answer(key)
    if first:
        display(Markdown(f"Your bet: **{first}**"))
    else:
        display(Markdown("You have not bet yet."))

    def after(result):
        shell.events.unregister("post_run_cell", after)
        if result.success:
            display(HTML(quiz.verdict(first)))

    shell.events.register("post_run_cell", after)


def _first_answer(key):
    """The option on which the learner has bet; None if there is none yet."""
    return journal.first_answers().get(key, {}).get("first")


@functools.cache
def asked():
    """All questions of the course: {key: Quiz}."""
    questions = {}
    for file in sorted(LESSONS.glob("*/questions.py")):
        module = importlib.import_module(f"lessons.{file.parent.name}.questions")
        for key, (question, options) in module.QUESTIONS.items():
            questions[key] = Quiz(key, question, options)
    return questions


@dataclass(frozen=True, repr=False)
class Quiz:
    """A question; `options` is {option: why it holds, or why it does not}, and the first one holds."""

    key: str
    question: str
    options: dict

    @property
    def answer(self):
        return next(iter(self.options))

    def shuffled(self):
        """[(letter, option), …] in an order that is the same everywhere, and tells nothing of the answer."""
        def hashed(option):
            return hashlib.sha256(f"{self.key}|{option}".encode()).digest()

        return list(zip(string.ascii_uppercase, sorted(self.options, key=hashed), strict=False))

    def verdict(self, first):
        """HTML: whether the bet holds, and why. Who has not bet opens the answer with a click."""
        answer = f"<strong>It is: {as_html(self.answer)}.</strong> {as_html(self.options[self.answer])}"
        if first not in self.options:  # None, or an option of an older course
            return f"<details><summary>The answer, and why</summary>{answer}</details>"
        if first == self.answer:
            return _framed(RIGHT, f"<strong>✔ Your bet holds.</strong> {as_html(self.options[first])}")
        return _framed(WRONG, f"<strong>✘ Your bet was: {as_html(first)}.</strong> "
                              f"{as_html(self.options[first])}<br>{answer}")

    def asked_as_html(self):
        """The question alone, without its options."""
        return f"<p><strong>Predict:</strong> {as_html(self.question)}</p>"

    def __repr__(self):
        options = [f"  {letter}) {option}" for letter, option in self.shuffled()]
        return "\n".join([f"Predict: {self.question}", *options])

    def _repr_html_(self):
        rows = "<br>".join(f"{letter}) {as_html(option)}" for letter, option in self.shuffled())
        # A page that is only read has no use for the last line: it knows it by its class.
        run = '<p class="course-run">Run this cell to bet, or to see your bet again.</p>'
        return f"{self.asked_as_html()}<p>{rows}</p>{run}"

    def _repr_mimebundle_(self, **kwargs):
        """The buttons, beside the HTML and the text above, which are what is stored."""
        return {**view(self.buttons()), "text/plain": repr(self)}

    def buttons(self):
        """A button for each option. The first click is kept and closes the question."""
        import ipywidgets as widgets

        status = widgets.HTML()
        buttons = []

        def close(first):
            status.value = (f'<div role="status">Your bet: <em>{as_html(first)}</em>. '
                            "Run the next cells: the answer stands below the result.</div>")
            for button in buttons:
                button.add_class("course-closed")  # not disabled: it would lose the keyboard's focus

        def click(option, _button):
            # What counts may be an older bet, from another notebook that is open.
            answer = journal.keep_first(self.key, option, option == self.answer)
            close(answer["first"])

        for letter, option in self.shuffled():
            button = widgets.Button(description=f"{letter}) {option.replace('`', '')}")
            button.add_class("course-option")
            button.on_click(partial(click, option))
            buttons.append(button)
        first = _first_answer(self.key)
        if first:
            close(first)
        return widgets.VBox([line_when_gone(_GONE), widgets.HTML(_STYLE + self.asked_as_html()), *buttons, status])


def _framed(colour, words):
    return f'<div role="status" style="border-left: 5px solid {colour}; padding: 2px 12px">{words}</div>'
