"""The picture on the first screen: what stands on this side of the border to a new process."""

import matplotlib.pyplot as plt


def border():
    """Draw what a notebook has, with a question for each: does a new process get it?"""
    figure, ax = plt.subplots(figsize=(9, 2.4))
    ax.set(xlim=(0, 9), ylim=(0, 6.4))
    ax.set_axis_off()
    things = "threads", "an open file", "a tensor", "a variable", "a function from a cell"
    for y, thing in enumerate(things, start=1):
        ax.text(0.2, y, thing, va="center")
        ax.annotate("?", (3, y), (6.2, y), va="center", arrowprops={"arrowstyle": "<-"}, size=14, weight="bold")
    ax.text(0.2, 6, "Your notebook has …", weight="bold", va="center")
    ax.text(6.2, 6, "What does a new process get?", weight="bold", va="center")
    ax.axvline(4.5, linestyle="--", color="#333333")
    figure.set_label(f"A notebook has {', '.join(things)}. Which of these does a new process get?")
    plt.show()
