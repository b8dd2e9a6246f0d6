"""Figures and explorers: the course's look, text alternatives, what is stored."""

import ipywidgets
from matplotlib.figure import Figure

from helpers.figures import alt, as_html, png, title
from helpers.widgets.explorer import Explorer


def test_a_figure_says_what_it_shows():
    figure = Figure()
    axes = figure.subplots()
    axes.set_title("Seconds", loc="left")
    axes.barh(["none", "two"], [3.0, 1.25])
    axes.set_xlabel("seconds")
    assert "Seconds." in alt(figure) and "none 3, two 1.25" in alt(figure)
    axes.plot([0, 1], [2.5, 0.5], label="loss")
    assert "loss: from 2.5 to 0.5." in alt(figure)
    figure.set_label('in "own" words')
    assert alt(figure) == 'in "own" words' and title(figure) == "Figure: Seconds"
    figure.suptitle("Three clocks")
    assert title(figure) == "Figure: Three clocks" and title(Figure(label="drawn")) == "Figure: drawn"
    assert 'alt="in &quot;own&quot; words"' in as_html(figure)
    assert png(figure).startswith(b"\x89PNG")


def test_a_figure_with_error_bars_and_gaps_says_what_it_can():
    axes = Figure().subplots()
    axes.errorbar([1, 2], [3, 4], yerr=[0.1, 0.2])
    axes.plot([1, 2], [None, 2], label="a gap")
    assert "a gap: from nan to 2." in alt(axes.figure)


def test_an_explorer_redraws_and_leaves_a_picture_for_github():
    figure = Figure()

    def draw(n):
        figure.set_label(f"number {n}")
        return figure

    explorer = Explorer({"n": ipywidgets.IntSlider(3)}, draw, "Says\nN.\n\nMore.")
    assert 'alt="number 3"' in explorer.picture.value
    explorer.controls["n"].value = 4
    assert 'alt="number 4"' in explorer.picture.value
    data, metadata = explorer._repr_mimebundle_()
    assert data["text/plain"] == "Says N." and data["image/png"].startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == "number 4"
