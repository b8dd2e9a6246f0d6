"""The ladder's chart, which grows while rungs are measured, and the reader's own best."""

import contextlib
import json
import statistics

from helpers.exercises import journal

KEPT, TRIED = {"color": "C0"}, {"color": "C1", "hatch": "//"}


def draw_ladder(ax, rungs, speeds, ceilings, title="The ladder"):
    """Draw what has been measured so far: a mark for each measurement, a bar for the median of a rung's.

    Args:
        rungs: Objects with `title` and `kept`, from the bottom to the top.
        speeds: {title: [images a second, one for each measurement]}; rungs without one stay empty.
        ceilings: {what limits: images a second}, drawn as dashed lines.
    """
    ax.clear()
    ax.set(title=title, xlabel="images a second, over a whole training", xscale="log")
    typical = {title: statistics.median(found) for title, found in speeds.items() if found}
    slowest = min(typical.values(), default=1)
    for row, rung in enumerate(rungs):
        if rung.title not in typical:
            continue
        ax.barh(row, typical[rung.title], 0.72, edgecolor="white", **(KEPT if rung.kept else TRIED))
        ax.plot(speeds[rung.title], [row] * len(speeds[rung.title]), "|", color="black", markersize=13)
        ax.text(typical[rung.title] * 1.1, row, f"{typical[rung.title] / slowest:.1f}×", va="center")
    styles = ((0, (4, 2)), (0, (1, 1.5)), "-.")
    for (what, limit), style in zip(ceilings.items(), styles, strict=False):
        ax.axvline(limit, color="black", linestyle=style, label=f"ceiling: {what}")
    if not all(rung.kept for rung in rungs):
        ax.barh(0, 0, label="kept", **KEPT)
        ax.barh(0, 0, edgecolor="white", label="tried, not kept", **TRIED)
    ax.set_yticks(range(len(rungs)), [rung.title for rung in rungs])
    ax.set_ylim(-0.6, len(rungs) - 0.4)
    ax.set_xlim(slowest / 2, 2 * max([*typical.values(), *ceilings.values(), 10 * slowest]))
    ax.figure.legends.clear()
    if ax.get_legend_handles_labels()[0]:
        ax.figure.legend(loc="outside lower center", ncols=4)
    said = ", ".join(f"{rung.title}{'' if rung.kept else ' (not kept)'} "
                     f"{typical[rung.title] / slowest:.1f} times" for rung in rungs if rung.title in typical)
    limits = ", ".join(f"{what} {limit / slowest:,.0f} times" for what, limit in ceilings.items())
    ax.figure.set_label(f"{title}: speed of each rung, as a multiple of the slowest: "
                        f"{said or 'none measured yet'}. Ceilings: {limits or 'none'}.")


def best_so_far(ladder, speed=None):
    """The reader's best `speed` on the ladder of that name, in images a second; None if there is none.

    A `speed` that is given is kept where it is the best. The file lies beside the progress, as
    NAME.ladders.json. If it cannot be read or written, there is no best yet: a measurement matters more than
    its record.
    """
    path, found = f"{journal.path().removesuffix('.json')}.ladders.json", {}
    with contextlib.suppress(OSError, ValueError):
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    if speed is not None and speed > found.get(ladder, 0):
        found[ladder] = speed
        with contextlib.suppress(OSError):
            journal.write(path, json.dumps(found, indent=1, sort_keys=True))
    return found.get(ladder)
