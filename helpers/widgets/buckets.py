"""Communication behind compute: `draw_overlap` shows it in real traces, `bucket_explorer` in a model of DDP's buckets.

`simulate` is the model. Its numbers (milliseconds of backward, latency, bandwidth) are measured in the notebook, so
that its prediction can be compared with a measured step.
"""

import html
from dataclasses import dataclass

import ipywidgets as widgets

from helpers import traces as tracing
from helpers.widgets.explorer import Explorer
from helpers.widgets.svg import ACTIVITIES, svg, ticks

_COMPUTE, _COMMUNICATION = ACTIVITIES["compute"], ACTIVITIES["communication"]

# ------------------------------------------------------------------------------------------------------------ the model


@dataclass(frozen=True)
class Step:
    """One backward pass and its all-reduces; times in milliseconds from the beginning of backward."""

    backward: list
    """[(layer, begin, end)], in the order in which they run: the last layer first."""
    buckets: list
    """[(megabytes, ready, begin, end)]: when the bucket's last gradient is there, and when its all-reduce runs."""

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
        return hidden / self.communicated if self.communicated else 0.0


def fill_buckets(megabytes, bucket_mb, first_mb=None):
    """[[place, …], …]: which gradients share a bucket, as DDP fills them, in the order in which they become ready.

    A bucket is closed by the gradient with which it reaches its size, so it may be larger than that.

    Args:
        megabytes: The size of each gradient, in the order in which they become ready.
        bucket_mb: The size at which a bucket is closed.
        first_mb: That of the first one, where it differs: DDP's is 1 MB unless `bucket_cap_mb` is set.
    """
    buckets, size = [[]], 0.0
    for place, megabyte in enumerate(megabytes):
        if buckets[-1] and size >= (first_mb if len(buckets) == 1 and first_mb is not None else bucket_mb):
            buckets.append([])
            size = 0.0
        buckets[-1].append(place)
        size += megabyte
    return buckets


def simulate(bucket_mb, backward_ms=5.0, layer_mb=4.0, latency_ms=0.2, mb_per_s=1000.0, layers=20, first_mb=None):
    """One step's backward with DDP's buckets.

    The model: layers run backward from the last to the first, and each one's gradient is ready when the layer is done.
    Gradients fill buckets in that order. A bucket's all-reduce begins when the bucket is full and the one before it is
    done; it takes latency plus bytes over bandwidth, and costs the computing nothing.

    Args:
        bucket_mb: Size at which a bucket is closed, in MB (2**20 bytes, as DDP's `bucket_cap_mb` counts).
        backward_ms: Milliseconds of backward, per layer: one number for all layers or a list, the first layer first.
        layer_mb: MB of gradients, per layer: likewise.
        latency_ms: Milliseconds that an all-reduce takes however small it is.
        mb_per_s: MB that an all-reduce gets through in a second, beyond its latency.
        layers: The number of layers where neither of the two is a list.
        first_mb: As `fill_buckets` takes it.

    Raises:
        TypeError, ValueError: an argument makes no sense; the message says which.
    """
    times, sizes = _checked(bucket_mb, backward_ms, layer_mb, latency_ms, mb_per_s, layers, first_mb)
    backward, now = [], 0.0
    for layer in reversed(range(len(times))):
        backward.append((layer, now, now + times[layer]))
        now += times[layer]
    sizes = sizes[::-1]
    buckets, free = [], 0.0
    for members in fill_buckets(sizes, bucket_mb, first_mb):
        megabytes, ready = sum(sizes[place] for place in members), backward[members[-1]][2]
        begin = max(ready, free)
        free = begin + latency_ms + 1000 * megabytes / mb_per_s
        buckets.append((megabytes, ready, begin, free))
    return Step(backward, buckets)


def _checked(bucket_mb, backward_ms, layer_mb, latency_ms, mb_per_s, layers, first_mb):
    """By layer: its milliseconds and its megabytes; once all arguments make sense."""
    lists = [argument for argument in (backward_ms, layer_mb) if isinstance(argument, list | tuple)]
    if isinstance(layers, bool) or not isinstance(layers, int):
        raise TypeError(f"layers must be a whole number such as 20, not {layers!r}")
    count = len(lists[0]) if lists else layers
    if count < 1:
        raise ValueError("there must be at least one layer")
    if any(len(argument) != count for argument in lists):
        raise ValueError(f"backward_ms lists {len(backward_ms)} layers, but layer_mb lists {len(layer_mb)}")
    times, sizes = (list(argument) if isinstance(argument, list | tuple) else [argument] * count
                    for argument in (backward_ms, layer_mb))
    numbers = [("bucket_mb", bucket_mb), ("latency_ms", latency_ms), ("mb_per_s", mb_per_s),
               *(("backward_ms", ms) for ms in times), *(("layer_mb", megabytes) for megabytes in sizes)]
    for name, value in numbers + ([("first_mb", first_mb)] if first_mb is not None else []):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, not {value!r}")
        if not 0 <= value < float("inf") or (value == 0 and name in ("bucket_mb", "mb_per_s")):
            raise ValueError(f"{name} must be a positive number, not {value}")
    if sum(times) + sum(sizes) == 0:
        raise ValueError("backward_ms and layer_mb are both 0: there is nothing to see")
    return times, sizes


# --------------------------------------------------------------------------------------------- the picture of the model

#: The bucket sizes that the explorer offers, in MB; the last one holds everything.
SIZES = (0.25, 0.5, 1, 2, 4, 8, 16, 25, 50, 100, 1000)


def draw(bucket_mb, measured_ms=None, **model):
    """A step with buckets of this size, and below it the step's time for every size, as SVG.

    Args:
        bucket_mb: As `simulate` takes it.
        measured_ms: {bucket_mb: milliseconds}: measured steps, drawn as points beside the curve; or None.
        model: The other arguments of `simulate`.
    """
    step = simulate(bucket_mb, **model)
    left, width = 130, 960
    scale = (width - left - 20) / max(step.total, 1e-9)
    many = len(step.buckets) != 1
    parts = [f'<text x="10" y="28" font-size="19" font-weight="bold">{len(step.buckets)} bucket{"s" * many}: '
             f"{step.total:.1f} ms, of which backward {step.computed:.1f} ms</text>",
             f'<text x="10" y="54">communication {step.communicated:.1f} ms, {step.overlap:.0%} of it hidden behind '
             f"backward</text>"]

    def bar(begin, end, top, height, colour, label="", ink="#fff"):
        wide = max((end - begin) * scale - 1, 0.8)
        parts.append(f'<rect x="{left + begin * scale:.1f}" y="{top}" width="{wide:.1f}" height="{height}" '
                     f'fill="{colour}"/>')
        if wide > 9 * len(label) + 4:
            parts.append(f'<text x="{left + (begin + end) / 2 * scale:.1f}" y="{top + height / 2 + 5}" font-size="14" '
                         f'text-anchor="middle" fill="{ink}">{label}</text>')

    parts += ['<text x="10" y="96">backward</text>', '<text x="10" y="142">bucket full</text>',
              '<text x="10" y="180">all-reduce</text>']
    for layer, begin, end in step.backward:
        bar(begin, end, 74, 34, _COMPUTE, str(layer))
    for number, (_, ready, begin, end) in enumerate(step.buckets):
        x = left + ready * scale
        parts.append(f'<path d="M{x - 6:.1f} 128h12l-6 14z" fill="#333"/>')
        bar(begin, end, 158, 34, _COMMUNICATION, str(number))
    parts.append(f'<path d="M{left} 206H{width - 20}" stroke="#333"/>')
    parts += ticks(left, width - 20, 226, lambda share: f"{step.total * share:,.1f} ms")
    parts += _sweep(bucket_mb, model, measured_ms or {}, 262)
    return svg(width, 520, parts, f"Buckets of {bucket_mb:g} MB: backward takes {step.computed:.1f} ms, the step "
                                  f"{step.total:.1f} ms; of the communication, "
                                  f"{step.overlap * step.communicated:.1f} ms are hidden.")


def _sweep(chosen, model, measured, top):
    """The step's time over the bucket size: the model as bars, measurements as points."""
    totals = {size: simulate(size, **model).total for size in sorted({*SIZES, chosen, *measured})}
    longest, wide = max([*totals.values(), *measured.values()]), 900 / len(totals)
    computed = simulate(chosen, **model).computed
    base = top + 210
    parts = [f'<text x="10" y="{top}" font-weight="bold">The step for every bucket size (ms)'
             f'{", ● measured" * bool(measured)}</text>']
    for number, (size, total) in enumerate(totals.items()):
        x, high = 30 + number * wide, 160 * total / longest
        colour = _COMPUTE if size == chosen else "#9aa5b1"
        parts += [f'<rect x="{x + 4:.1f}" y="{base - high:.1f}" width="{wide - 8:.1f}" height="{high:.1f}" '
                  f'fill="{colour}"/>',
                  f'<text x="{x + wide / 2:.1f}" y="{base - 8}" font-size="14" text-anchor="middle" '
                  f'fill="{"#fff" if size == chosen else "#111"}">{total:.0f}</text>',
                  f'<text x="{x + wide / 2:.1f}" y="{base + 20}" font-size="14" text-anchor="middle" '
                  f'font-weight="{"bold" if size == chosen else "normal"}">{_size(size)}</text>']
        if size in measured:
            parts.append(f'<circle cx="{x + wide / 2:.1f}" cy="{base - 160 * measured[size] / longest:.1f}" r="6" '
                         f'fill="#111" stroke="#fff"/>')
    y = base - 160 * computed / longest
    parts += [f'<path d="M30 {y:.1f}H930" stroke="#111" stroke-dasharray="6 4"/>',
              f'<text x="10" y="{base + 42}" font-size="15">bucket size in MB; the dashed line is backward alone: '
              "no step can be shorter</text>"]
    return parts


def _size(megabytes):
    return "all" if megabytes == SIZES[-1] else f"{megabytes:g}"


def bucket_explorer(backward_ms=5.0, layer_mb=4.0, latency_ms=0.5, mb_per_s=1000.0, layers=20, bucket_mb=25,
                    measured_ms=None):
    """Move the bucket size, the latency and the bandwidth; see how much of the communication hides behind backward.

    Args:
        backward_ms, layer_mb, layers: As `simulate` takes them.
        latency_ms, mb_per_s, bucket_mb: The sliders' first values.
        measured_ms: As `draw` takes it.
    """
    wide = {"style": {"description_width": "150px"}, "layout": {"width": "620px"}}
    sizes = sorted({*SIZES, bucket_mb})
    controls = {
        "bucket_mb": widgets.SelectionSlider(options=[(_size(size), size) for size in sizes], value=bucket_mb,
                                             description="bucket size, MB", **wide),
        "latency_ms": widgets.FloatLogSlider(latency_ms, base=10, min=-2, max=1.5, step=0.1, description="latency, ms",
                                             readout_format=".2f", **wide),
        "mb_per_s": widgets.FloatLogSlider(mb_per_s, base=10, min=1, max=5, step=0.1, description="MB per second",
                                           readout_format=".0f", **wide),
    }
    model = {"backward_ms": backward_ms, "layer_mb": layer_mb, "layers": layers}
    return Explorer(controls, lambda **values: draw(**values, measured_ms=measured_ms, **model),
                    "Bucket explorer: set the bucket size, the latency and the bandwidth; the picture shows backward, "
                    "the all-reduces, how much of them is hidden, and the step's time for every bucket size.")


# ---------------------------------------------------------------------------------------------------------- real traces


def draw_overlap(traces, title="", step=None):
    """When each rank computed, communicated and waited, from real traces, as SVG; overlap is counted beside it.

    Args:
        traces: One `helpers.traces.Trace` per rank, or the paths of their files. They are put on one clock.
        title: Said above the picture.
        step: The number of the profiler's step to show; None for all that was recorded.

    Raises:
        helpers.traces.TraceError: a file cannot be read, the traces do not belong together, or there is no such step.
    """
    traces = [trace if isinstance(trace, tracing.Trace) else tracing.read(trace) for trace in traces]
    traces = tracing.together(traces)
    if step is not None:
        begins, ends = zip(*((trace.step(step), trace.steps[step])[1] for trace in traces), strict=True)
        traces = [trace.between(min(begins), max(ends)) for trace in traces]
    begin = min(trace.span_us[0] for trace in traces)
    until = max(trace.span_us[1] for trace in traces)
    left, width, top = 170, 960, 48
    scale = (width - left - 16) / (until - begin)
    parts = [f'<text x="10" y="28" font-size="18" font-weight="bold">{html.escape(title)}</text>'] if title else []
    said = []
    for trace in traces:
        said.append(f"rank {trace.rank}: " + ", ".join(
            f"{kind} {1000 * seconds:.1f} ms" for kind, seconds in trace.seconds().items() if kind in ACTIVITIES) + ";")
        parts.append(f'<text x="10" y="{top + 16}"><tspan font-weight="bold">rank {trace.rank}</tspan>: '
                     f"{_counted(trace)}</text>")
        for number, (kind, colour) in enumerate(ACTIVITIES.items()):
            y = top + 26 + 30 * number
            parts.append(f'<text x="30" y="{y + 18}">{kind}</text>'
                         f'<rect x="{left}" y="{y}" width="{width - left - 16}" height="26" fill="#f2f2f2"/>')
            parts += [f'<rect x="{left + (a - begin) * scale:.1f}" y="{y}" width="{max((b - a) * scale, 0.6):.1f}" '
                      f'height="26" fill="{colour}"/>' for a, b in _visible(trace.busy(kind), 0.3 / scale)]
        top += 134
    parts.append(f'<path d="M{left} {top - 8}H{width - 16}" stroke="#333"/>')
    parts += ticks(left, width - 16, top + 12, lambda share: f"{(until - begin) / 1000 * share:,.1f} ms")
    return svg(width, top + 24, parts, " ".join([title or "When each rank computed, communicated and waited", *said]))


def _counted(trace):
    seconds, overlap = trace.seconds(), trace.overlap()
    words = (f"compute {1000 * seconds[tracing.COMPUTE]:.1f} ms, "
             f"communication {1000 * seconds[tracing.COMMUNICATION]:.1f} ms")
    words += f" ({overlap:.0%} of it hidden behind compute)" if overlap is not None else ""
    return f"{words}, waiting {1000 * seconds[tracing.WAITING]:.1f} ms"


def _visible(pieces, gap):
    """The pieces, with gaps too thin to be seen closed: a picture of 10,000 events stays small."""
    joined = []
    for begin, end in pieces:
        if joined and begin - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined
