"""Figures: the course's look, text alternatives, what is stored."""

from matplotlib.figure import Figure

from helpers.figures import alt, small_png, title


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
    picture, shown = small_png(figure)
    assert picture.startswith(b"\x89PNG") and shown["alt"] == 'in "own" words'


def test_a_figure_with_error_bars_and_gaps_says_what_it_can():
    axes = Figure().subplots()
    axes.errorbar([1, 2], [3, 4], yerr=[0.1, 0.2])
    axes.plot([1, 2], [None, 2], label="a gap")
    assert "a gap: from nan to 2." in alt(axes.figure)
