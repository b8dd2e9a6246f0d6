"""The pipeline explorer: who does which micro-batch when, and what a rank holds, by three schedules."""

from matplotlib.figure import Figure

from helpers.widgets.explorer import Explorer, buttons, clock, curtain, slider, wipe
from lessons.model_parallel.schedules import draw, gpipe, interleaved, messages, one_f_one_b, simulate

SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b, "Interleaved": interleaved}


def schedule_explorer():
    """Pipeline explorer: set the schedule, the ranks and the micro-batches; the picture shows who does what
    when, the share of idle time, and what a rank holds. Interleaved gives each rank several short stages, and rounds
    the micro-batches up to a multiple of the ranks."""
    controls = {
        "schedule": buttons("Schedule", SCHEDULES),
        "ranks": slider("Ranks", 4, 1, 16),
        "micro_batches": slider("Micro-batches", 8, 1, 32),
        "v": slider("v (interleaved)", 2, 2, 4),
        "time": clock(),
    }
    presets = {
        "2 micro-batches": ({"micro_batches": 2, "time": 0},
                            "Press Play. How many ranks work at the same time?"),
        "12 micro-batches": ({"micro_batches": 12},
                             "What does rank 0 hold now, and how much of the time is idle?"),
        "1F1B": ({"schedule": "1F1B", "time": 0},
                 "Press Play. When does rank 0 go backward for the first time?"),
        "interleaved": ({"schedule": "Interleaved", "time": 0},
                        "Press Play. How long does rank 3 wait at first?"),
    }
    figure = Figure(figsize=(9, 3.2), layout="none")
    ax = figure.add_axes((0.07, 0.17, 0.92, 0.71))

    def redraw(schedule, ranks, micro_batches, v, time=100):
        if schedule == "Interleaved":
            m, stages = -(-micro_batches // ranks) * ranks, (v,)
        else:
            m, stages, v = micro_batches, (), 1
        orders = [SCHEDULES[schedule](rank, ranks, m, *stages) for rank in range(ranks)]
        timeline = simulate(orders)
        held, sent = [steps / v for steps in timeline.held], messages(orders)
        wipe(ax)
        draw(ax, timeline.starts)
        ax.set_title(f"{schedule}, {m} micro-batches: idle {timeline.bubble:.0%}, "
                     f"rank 0 holds {held[0]:.3g}, {sent} messages")
        figure.set_label(f"{schedule} with {ranks} ranks, {v} stages on each, and {m} micro-batches: "
                         f"idle {timeline.bubble:.1%} of the time; "
                         f"micro-batches held by rank: {held}; {sent} messages.")
        curtain(ax, time)
        return figure

    return Explorer(controls, redraw, schedule_explorer.__doc__,
                    "Grey is waiting. Where is it: at the beginning, in the middle, at the end?",
                    presets, "time")
