"""The ladder's chart, which grows while rungs are measured, and the reader's own best."""

import contextlib
import json
import statistics

from helpers.exercises import journal

KEPT = {"color": "C0"}
TRIED = {"color": "C1", "hatch": "//"}
DASHES = ((0, (4, 2)), (0, (1, 1.5)), "-.")


def draw_ladder(ax, rungs, speeds, ceilings, title="The ladder"):
    """Draw what has been measured so far: a mark for each measurement, a bar for the median of a rung's.

    Args:
        rungs: Objects with `title` and `kept`, from the bottom to the top.
        speeds: {title: [images a second, one for each measurement]}; rungs without one stay empty.
        ceilings: {what limits: images a second}, drawn as dashed lines.
    """
    medians = {}
    for rung in rungs:
        if speeds.get(rung.title):
            medians[rung.title] = statistics.median(speeds[rung.title])
    slowest = min(medians.values(), default=1)

    ax.clear()
    ax.set(title=title, xlabel="images a second, over a whole training", xscale="log")
    for row, rung in enumerate(rungs):
        if rung.title in medians:
            measured = speeds[rung.title]
            median = medians[rung.title]
            ax.barh(row, median, 0.72, edgecolor="white", **style(rung))
            ax.plot(measured, [row] * len(measured), "|", color="black", markersize=13)
            ax.text(median * 1.1, row, f"{median / slowest:.1f}×", va="center")
    for (limit, speed), dashes in zip(ceilings.items(), DASHES, strict=False):
        ax.axvline(speed, color="black", linestyle=dashes, label=f"ceiling: {limit}")
    if not all(rung.kept for rung in rungs):
        # Bars of no length, for the legend alone.
        ax.barh(0, 0, label="kept", **KEPT)
        ax.barh(0, 0, edgecolor="white", label="tried, lost", **TRIED)
    ax.set_yticks(range(len(rungs)), [rung.title for rung in rungs])
    ax.set_ylim(-0.6, len(rungs) - 0.4)
    # Room for a tenfold gain before it is measured, so that the first bars do not fill the chart.
    ax.set_xlim(slowest / 2, 2 * max([*medians.values(), *ceilings.values(), 10 * slowest]))
    ax.figure.legends.clear()
    handles, _ = ax.get_legend_handles_labels()
    if handles:
        ax.figure.legend(loc="outside lower center", ncols=4)
    ax.figure.set_label(in_words(title, rungs, medians, ceilings, slowest))


def style(rung):
    if rung.kept:
        return KEPT
    return TRIED


def in_words(title, rungs, medians, ceilings, slowest):
    """What the chart shows, for those who do not see it."""
    gains = []
    for rung in rungs:
        if rung.title in medians:
            remark = "" if rung.kept else " (lost)"
            gains.append(f"{rung.title}{remark} {medians[rung.title] / slowest:.1f} times")
    limits = [f"{limit} {speed / slowest:,.0f} times" for limit, speed in ceilings.items()]
    return (f"{title}: speed of each rung, as a multiple of the slowest: {', '.join(gains) or 'none measured yet'}. "
            f"Ceilings: {', '.join(limits) or 'none'}.")


def best_so_far(ladder, speed=None):
    """The reader's best `speed` on the ladder of that name, in images a second; None if there is none.

    A `speed` that is given is kept where it is the best. The file lies beside the progress, as
    NAME.ladders.json. If it cannot be read or written, there is no best yet: a measurement matters more than
    its record.
    """
    path = journal.path().removesuffix(".json") + ".ladders.json"
    best = {}
    with contextlib.suppress(OSError, ValueError):
        with open(path, encoding="utf-8") as file:
            best = json.load(file)
    if speed is not None and speed > best.get(ladder, 0):
        best[ladder] = speed
        with contextlib.suppress(OSError):
            journal.write(path, json.dumps(best, indent=1, sort_keys=True))
    return best.get(ladder)
