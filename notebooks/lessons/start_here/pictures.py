"""Two pictures of the first lesson: what `launch` starts, and what `all_reduce` does."""

from matplotlib.figure import Figure

from helpers.figures import ACTIVITIES


def canvas(width, height):
    figure = Figure(figsize=(9, 9 * height / width), layout="none")
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.set_axis_off()
    return figure, ax


def box(ax, x, y, text):
    ax.text(x, y, text, ha="center", va="center",
            bbox={"boxstyle": "round,pad=0.6", "fc": "white", "ec": "#333333"})


def arrow(ax, start, end):
    style = {"arrowstyle": "-|>", "color": ACTIVITIES["communication"], "linewidth": 2}
    ax.annotate("", end, start, arrowprops=style)


def four_ranks():
    """One notebook, and the four processes that it starts."""
    figure, ax = canvas(12, 3)
    for rank in range(4):
        x = 1.5 + 3 * rank
        ax.annotate("", (x, 1.15), (6, 2.1), arrowprops={"arrowstyle": "-|>", "color": "#333333"})
        box(ax, x, 0.6, f"rank {rank}:\na process of its own")
    box(ax, 6, 2.5, 'this notebook: launch("train.py", nprocs=4)')
    figure.set_label("A notebook starts four processes with launch: rank 0, rank 1, rank 2 and rank 3.")
    return figure


def all_reduce(numbers):
    """What each rank holds before `all_reduce`, and after it."""
    figure, ax = canvas(12, 3.4)
    for rank, number in enumerate(numbers):
        x = 3 + 3 * rank
        arrow(ax, (x, 2.6), (x, 1.95))
        arrow(ax, (x, 1.45), (x, 0.8))
        box(ax, x, 3, f"rank {rank} holds {number}")
        box(ax, x, 0.4, f"rank {rank} holds {sum(numbers)}")
    total = f"all_reduce: {' + '.join(map(str, numbers))} = {sum(numbers)}".center(70)
    ax.text(6, 1.7, total, ha="center", va="center", color="white", weight="bold",
            bbox={"boxstyle": "square,pad=0.5", "fc": ACTIVITIES["communication"], "ec": "none"})
    figure.set_label(f"Before all_reduce the ranks hold {', '.join(map(str, numbers))}. "
                     f"Afterwards each rank holds their sum, {sum(numbers)}.")
    return figure
