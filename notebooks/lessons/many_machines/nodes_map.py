"""A live map of a job on several nodes: the step of each, in how large a world, and who was killed when."""

import time

import matplotlib.pyplot as plt

from helpers.figures import ACTIVITIES

MARKERS = "ox+|"
#: Seconds between two pictures while a job runs.
INTERVAL = 2


class NodesMap:
    """Steps over seconds, a line for each node. The job's rows have "node", "time", "step" and "world".

        live = NodesMap(job)
        live.until(lambda job: …)            # as `job.until`, and the picture moves
        live.mark("node 1 killed")           # now, as a line in the picture
        live.until(…)
    """

    def __init__(self, job):
        self.job, self.began, self.marks, self.handle = job, time.time(), [], None
        self.drawn = 0

    def mark(self, text):
        """Something happened now; returns the time of day."""
        self.marks.append((time.time(), text))
        return self.marks[-1][0]

    def until(self, holds, timeout=120):
        """Wait as `Job.until` does, and show the picture while it waits."""
        def look(job):
            if time.monotonic() - self.drawn > INTERVAL:
                self.show()
            return holds(job)

        self.job.until(look, timeout)
        self.show()

    def show(self):
        """Draw it anew, in the same place."""
        from IPython.display import display

        figure = self.figure()
        if self.handle is None:
            self.handle = display(figure, display_id=True)
        else:
            self.handle.update(figure)
        plt.close(figure)
        self.drawn = time.monotonic()

    def figure(self):
        """The picture as it is now."""
        (figure, ax), said = plt.subplots(figsize=(9, 4.2)), []
        rows = list(self.job.rows)  # a copy, for more of them come
        for node, colour in zip(self.job.processes, (*ACTIVITIES.values(), "black"), strict=False):
            own = [row for row in rows if row["node"] == node]
            world = f"step {own[-1]['step']} in a world of {own[-1]['world']}" if own else "starting"
            code = self.job.exitcodes[node]
            said.append(f"node {node}: {world}" if code is None else
                        f"node {node}: {'killed' if code < 0 else 'done'} after {world}")
            ax.plot([row["time"] - self.began for row in own], [row["step"] for row in own], MARKERS[node],
                    markersize=8, fillstyle="none", color=colour, label=said[-1])
        marks = [(moment - self.began, text) for moment, text in self.marks]
        for seconds, text in marks:
            ax.axvline(seconds, color="black", linestyle="--")
            ax.text(seconds, 1.01, text, transform=ax.get_xaxis_transform(), ha="center", va="bottom")
        ax.set_title("What each node has done", loc="left", pad=22)
        ax.set(xlabel="seconds since the start", ylabel="steps made", ylim=(0, None), xlim=(0, None))
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        figure.set_label("Steps made over seconds. " + "; ".join(said) + ". "
                         + " ".join(f"{text} after {seconds:.0f} seconds." for seconds, text in marks))
        return figure
