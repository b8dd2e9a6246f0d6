"""Pictures of the lesson: what each device holds, as the lesson counted it, and what each does in a step."""

from itertools import accumulate

from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from helpers.figures import ACTIVITIES, HATCHES
from lessons.data_parallel.replicas_explorer import KINDS, MIB, busy, written_size

#: What a device does: computing in shades of blue, communication in shades of red.
PHASES = {"forward": "#7088fd", "loss": "#7088fd",
          "backward": ACTIVITIES["compute"], "optimizer": ACTIVITIES["compute"],
          "replicate": ACTIVITIES["communication"], "reduce": ACTIVITIES["communication"],
          "scatter": "#e2584a", "gather": "#e2584a", "waits": ACTIVITIES["waiting"]}


def draw_memory(ax, held):
    """Draw what each device holds, {kind of KINDS: bytes}, as a stacked bar."""
    totals = [sum(kinds.values()) for kinds in held]
    unit, size = ("GiB", 1024 * MIB) if max(totals) >= 1000 * MIB else ("MiB", MIB)
    _rows(ax, len(held), KINDS)
    bars = []
    for device, (kinds, total) in enumerate(zip(held, totals, strict=True)):
        ends = list(accumulate(kinds.get(kind, 0) / size for kind in KINDS))
        bars += [(device, *bar) for bar in zip([0, *ends], ends, KINDS.values(), strict=False)]
        ax.annotate(written_size(total), (total / size, device), (5, 0), textcoords="offset points", va="center")
    _bars(ax, bars)
    ax.set(xlim=(0, 1.17 * max(totals) / size), xlabel=f"{unit} held")  # room beside the longest bar
    words = "; ".join(f"device {device} {written_size(total)}" for device, total in enumerate(totals))
    ax.figure.set_label(f"What each device holds: {words}.")


def draw_timeline(ax, events, n_devices):
    """Draw what each device does during a step, (device, phase of PHASES, begin, end), and when it waits."""
    took, total = busy(events)
    _rows(ax, n_devices, PHASES)
    _bars(ax, [(device, 0, total, PHASES["waits"]) for device in range(n_devices)], HATCHES["waiting"])
    bars = [(device, begin, end, PHASES[phase.split()[0]]) for device, phase, begin, end in events]
    copies = [PHASES[phase] for phase in ("scatter", "replicate")]
    _bars(ax, [bar for bar in bars if bar[-1] in copies], HATCHES["communication"])
    _bars(ax, [bar for bar in bars if bar[-1] not in copies])
    ax.set(xlim=(0, total), xlabel="ms since the step began")
    words = "; ".join(f"device {device} busy for {took[device]:.0f} ms" for device in range(n_devices))
    ax.figure.set_label(f"What each device does: {words}, of {total:.0f} ms.")


def _rows(ax, n_devices, colours):
    """A row for each device, and what the colours mean."""
    ax.set_yticks(range(n_devices), [f"device {device}" for device in range(n_devices)])
    ax.set_ylim(n_devices - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=5)
    names = {}
    for name, colour in colours.items():
        names.setdefault(colour, []).append(name)
    ax.legend(handles=[Patch(facecolor=colour, label=", ".join(same), edgecolor="white", linewidth=0)
                       for colour, same in names.items()],
              loc="center left", bbox_to_anchor=(1, 0.5), labelspacing=0.2, handlelength=1.2, borderpad=0)


def _bars(ax, bars, hatch=""):
    """Draw (row, begin, end, colour)."""
    corners = [[(begin, row - 0.42), (begin, row + 0.42), (end, row + 0.42), (end, row - 0.42)]
               for row, begin, end, _ in bars]
    ax.add_collection(PolyCollection(corners, facecolors=[colour for *_, colour in bars], hatch=hatch,
                                     edgecolors="white", linewidths=0), autolim=False)
