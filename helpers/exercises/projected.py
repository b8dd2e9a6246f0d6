"""The class on a page to be projected, a lesson on each screen; it names nobody, and needs no network and no script.

What a row leaves out opens with a click; the answer to a bet takes a second one.
"""

import html
from pathlib import Path
from typing import NamedTuple

from helpers.exercises.feedback import as_html

TEMPLATE = Path(__file__).with_name("projected.html")
#: Of an exercise, the commonest causes of a "not yet".
MOST_CAUSES = 5


class Solving(NamedTuple):
    """How an exercise went."""

    title: str
    tried: int  # learners
    solved: int
    effort: str  # medians of those who solved it, in words
    causes: list  # (cause of a "not yet", learners), the commonest first


class Split(NamedTuple):
    """How the room split on a bet."""

    question: str
    options: list  # (letter, option, learners, whether it holds)
    why: str  # why that one holds


def page(learners, lessons, shown):
    """HTML of the page.

    Args:
        learners: How many there are.
        lessons: {(number, title): (its `Solving`s, its `Split`s)}.
        shown: The number of the lesson with which it begins.
    """
    sections = []
    for (number, title), (exercises, bets) in lessons.items():
        rows = [_exercise(f"exercise-{number}-{place}", one, learners) for place, one in enumerate(exercises)]
        splits = [_bet(f"bet-{number}-{place}", one, learners) for place, one in enumerate(bets)]
        first = ' class="first"' if number == shown else ""
        sections += [
            f'<section id="lesson-{number}"{first} aria-label="Lesson {number}">',
            f"<header><h1>{number} · {html.escape(title)}</h1>{_links(lessons, number)}</header>",
            f"<div class=exercises><h2>Exercises <small>of {learners} learners; striped: not yet</small></h2>",
            *rows,
            "</div><div class=bets><h2>First bets <small>click one to talk about it</small></h2>",
            *splits,
            "</div></section>",
        ]
    return TEMPLATE.read_text(encoding="utf-8").replace("CONTENT", "\n".join(sections))


def _links(lessons, here):
    links = ""
    for number, title in lessons:
        current = ' aria-current="page"' if number == here else ""
        links += f'<a href="#lesson-{number}"{current} title="{html.escape(title)}">{number}</a>'
    return f'<nav aria-label="Lessons">{links}</nav>'


def _exercise(name, one, learners):
    not_yet = one.tried - one.solved
    bar = ""
    if one.solved:
        bar += f'<span class="solved" style="width: {_percent(one.solved, learners)}"></span>'
    if not_yet:
        bar += f'<span class="not-yet" style="width: {_percent(not_yet, learners)}"></span>'
    row = (f'<span class="name"><strong>{as_html(one.title)}</strong> <span>{one.solved} solved</span></span>'
           f'<span class="bar">{bar}</span>')
    causes = ""
    for place, (cause, times) in enumerate(one.causes[:MOST_CAUSES]):
        if place == 0:
            row += f'<span class="words faint">{times} read: {as_html(cause)}</span>'
        causes += f"<li><strong>{times}</strong> read: {as_html(cause)}</li>"
    told = f"<p>{one.solved} solved it, {not_yet} have not solved it yet. {one.effort}</p>"
    if causes:
        told += f"<p>What the check said, and to how many:</p><ul>{causes}</ul>"
    return _opens(name, row, one.title, told)


def _bet(name, one, learners):
    most = max(times for _, _, times, _ in one.options)
    bar = options = ""
    for letter, option, times, holds in one.options:
        if times:
            bar += f'<span style="width: {_percent(times, learners)}"><b>{letter}</b> {times}</span>'
        right, mark = (' class="right"', '<span class="mark">✔ </span>') if holds else ("", "")
        share = f'<span{"" if times else " class=none"} style="width: {_percent(times, most)}">{times}</span>'
        options += f'<span{right}>{mark}{letter}) {as_html(option)}</span><span class="bar">{share}</span>'
    row = f'<span class="words">{as_html(one.question)}</span><span class="bar">{bar}</span>'
    answer = f"<details><summary>The answer, and why</summary><p>{as_html(one.why)}</p></details>"
    return _opens(name, row, one.question, f'<div class="options">{options}</div>{answer}', "bet")


def _opens(name, row, title, told, kind="exercise"):
    """A row, and what opens when it is clicked."""
    return (f'<button class="row" popovertarget="{name}">{row}</button>'
            f'<div id="{name}" class="{kind}" popover role="dialog" aria-labelledby="{name}-title">'
            f'<h2 id="{name}-title">{as_html(title)}</h2>{told}<button class="close" popovertarget="{name}" '
            'popovertargetaction="hide" aria-label="Close">✕</button></div>')


def _percent(part, whole):
    return f"{100 * part / max(1, whole):.1f}%"
