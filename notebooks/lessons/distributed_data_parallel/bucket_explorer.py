"""The bucket explorer: gradients that are sent in buckets while backward still computes, by a model."""

from typing import NamedTuple

import ipywidgets as widgets
from matplotlib.figure import Figure

from helpers.figures import ACTIVITIES, HATCHES
from helpers.widgets.explorer import LOOK, Explorer, choice, clock, curtain, wipe

#: The bucket sizes that the explorer offers, in MB; the last one holds everything.
SIZES = (0.25, 0.5, 1, 2, 4, 8, 16, 25, 50, 100, 1000)


class Step(NamedTuple):
    """One backward pass and its all-reduces; times in milliseconds from the beginning of backward."""

    backward: list  # [(layer, begin, end)], the last layer first
    buckets: list  # [(megabytes, when its last gradient is there, when its all-reduce begins, and ends)]

    @property
    def computed(self):
        """Milliseconds until backward ends."""
        return self.backward[-1][2]

    @property
    def total(self):
        """Milliseconds until both backward and the last all-reduce have ended."""
        return max(self.computed, self.buckets[-1][3])

    @property
    def communicated(self):
        """Milliseconds of communication in all."""
        return sum(end - begin for _, _, begin, end in self.buckets)

    @property
    def overlap(self):
        """The share of the communication, 0 to 1, that runs while backward computes."""
        hidden = sum(max(0.0, min(end, self.computed) - begin) for _, _, begin, end in self.buckets)
        return hidden / self.communicated


def fill_buckets(megabytes, bucket_mb):
    """[[place, …], …]: which gradients share a bucket, of these `megabytes` in the order of their arrival.

    As in DDP, a bucket is closed by the gradient with which it reaches its size. It may be larger than that.
    """
    buckets, size = [[]], 0.0
    for place, megabyte in enumerate(megabytes):
        if size >= bucket_mb:
            buckets.append([])
            size = 0.0
        buckets[-1].append(place)
        size += megabyte
    return buckets


def simulate(bucket_mb, backward_ms=5.0, layer_mb=4.0, latency_ms=0.2, mb_per_s=1000.0, layers=20):
    """One step's backward with DDP's buckets.

    The model: equal layers run backward from the last to the first, `backward_ms` each, and the `layer_mb` of
    a layer's gradient are ready when it is done. Gradients fill buckets in that order. A bucket's all-reduce
    begins when the bucket is full and the one before it is done; it takes latency plus bytes over bandwidth,
    and costs the computing nothing. MB are 2**20 bytes, as DDP's `bucket_cap_mb` counts.
    """
    backward = [(layers - 1 - place, place * backward_ms, (place + 1) * backward_ms)
                for place in range(layers)]
    buckets, free = [], 0.0
    for members in fill_buckets([layer_mb] * layers, bucket_mb):
        megabytes, ready = len(members) * layer_mb, backward[members[-1]][2]
        begin = max(ready, free)
        free = begin + latency_ms + 1000 * megabytes / mb_per_s
        buckets.append((megabytes, ready, begin, free))
    return Step(backward, buckets)


def draw(ax, bucket_mb, **model):
    """Draw the timeline of one backward by `simulate`: its layers, and the all-reduce of each bucket."""
    step = simulate(bucket_mb, **model)
    all_reduces = [(number, begin, end) for number, (_, _, begin, end) in enumerate(step.buckets)]
    for row, bars, kind in ((0, step.backward, "compute"), (1, all_reduces, "communication")):
        narrowest = min(end - begin for _, begin, end in bars)
        edge = 0.6 if narrowest > 0.015 * step.total else 0  # white edges would cover narrower bars
        ax.broken_barh([(begin, end - begin) for _, begin, end in bars], (row - 0.35, 0.7),
                       facecolors=ACTIVITIES[kind], hatch=HATCHES[kind], edgecolors="white", linewidth=edge)
        for number, begin, end in bars:
            if end - begin > 0.03 * step.total:  # there is room for it
                ax.text((begin + end) / 2, row, number, ha="center", va="center", color="white",
                        bbox={"facecolor": ACTIVITIES[kind], "edgecolor": "none", "pad": 3})
    ready = [ready for _, ready, _, _ in step.buckets]
    ax.plot(ready, [0.5] * len(ready), "v", color="#111111", markersize=6, clip_on=False)
    ax.set_xlim(0, 1.01 * step.total)
    buckets = f"{len(step.buckets)} bucket{'s' if len(step.buckets) > 1 else ''}"
    ax.text(0, 1.06, f"{buckets}: step {step.total:.1f} ms, backward {step.computed:.1f} ms, communication "
            f"{step.communicated:.1f} ms, {step.overlap:.0%} hidden", transform=ax.transAxes, va="bottom")
    hidden = step.overlap * step.communicated
    ax.figure.set_label(f"Buckets of {bucket_mb:g} MB: backward takes {step.computed:.1f} ms, the step "
                        f"{step.total:.1f} ms; of the communication, {hidden:.1f} ms are hidden.")


def draw_sizes(ax, bucket_mb, measured_ms, **model):
    """Draw the step's time over the size of its buckets: by `simulate`, and as it was measured."""
    steps = {size: simulate(size, **model) for size in sorted({*SIZES, bucket_mb})}
    totals = [step.total for step in steps.values()]
    alone = steps[bucket_mb].computed
    ax.plot([SIZES[0], SIZES[-1]], [alone, alone], "--", color="C6", label="backward alone")
    ax.plot(list(steps), totals, ".-", color="C0", label="model")
    ax.plot(bucket_mb, steps[bucket_mb].total, "o", color="C0", markersize=11)
    highest = max(totals)
    if measured_ms:
        ax.plot(list(measured_ms), list(measured_ms.values()), "D", color="#111111", label="measured")
        highest = max(highest, *measured_ms.values())
    ax.set_ylim(0, 1.1 * highest)


def _size(megabytes):
    return "all" if megabytes == SIZES[-1] else f"{megabytes:g}"


def bucket_explorer(backward_ms=5.0, layer_mb=4.0, latency_ms=0.5, mb_per_s=1000.0, layers=20, bucket_mb=25,
                    measured_ms=None):
    """Bucket explorer: set the bucket size, the latency and the bandwidth; the picture shows backward, the
    all-reduces, how much of them is hidden, and the step's time for every bucket size.

    The arguments are those of `simulate`, and measured steps, {bucket_mb: milliseconds}.
    """
    sizes = [(_size(size), size) for size in sorted({*SIZES, bucket_mb})]
    controls = {
        "bucket_mb": choice("bucket size, MB", bucket_mb, sizes),
        "latency_ms": widgets.FloatLogSlider(latency_ms, min=-2, max=1.5, readout_format=".2f",
                                             description="latency, ms", **LOOK),
        "mb_per_s": widgets.FloatLogSlider(mb_per_s, min=1, max=5, readout_format=".0f",
                                           description="MB per second", **LOOK),
        "time": clock(),
    }
    presets = {
        "slow network": ({"mb_per_s": 100.0, "time": 0}, "Press Play. Which row is busy at the end?"),
        "high latency": ({"latency_ms": 20.0}, "Move the bucket size. Why is a small one bad now?"),
        "one bucket": ({"bucket_mb": SIZES[-1], "time": 0},
                       "Press Play. When can the only all-reduce begin?"),
    }
    model = {"backward_ms": backward_ms, "layer_mb": layer_mb, "layers": layers}
    figure = Figure(figsize=(9, 5.2), layout="none")
    timeline, curve = figure.add_axes((0.12, 0.6, 0.86, 0.28)), figure.add_axes((0.12, 0.11, 0.86, 0.3))
    timeline.set(ylim=(1.45, -0.45),
                 xlabel="ms since backward began (numbers: layers, buckets; ▼: a bucket is full)")
    timeline.set_yticks([0, 1], ["backward", "all-reduce"])
    timeline.tick_params(axis="y", length=0)
    timeline.locator_params(axis="x", nbins=6)
    timeline.set_title("One backward, and the all-reduces of its buckets", pad=26)
    curve.set(xscale="log", xlabel="bucket size (MB)", ylabel="step (ms)")
    curve.minorticks_off()
    curve.set_xticks(SIZES[::2], map(_size, SIZES[::2]))
    curve.locator_params(axis="y", nbins=4)
    points = ", ◆ measured" if measured_ms else ""
    curve.set_title(f"Every bucket size: ● model{points}, dashed: backward alone")

    def redraw(bucket_mb, time=100, **network):
        wipe(timeline, curve)
        draw(timeline, bucket_mb, **network, **model)
        curtain(timeline, time)
        draw_sizes(curve, bucket_mb, measured_ms, **network, **model)
        return figure

    return Explorer(controls, redraw, bucket_explorer.__doc__,
                    "Red below blue is hidden. How much red stands out behind the last blue block?",
                    presets, "time")
