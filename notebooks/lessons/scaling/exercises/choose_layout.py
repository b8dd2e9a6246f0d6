"""A planner in ten lines: of all layouts that fit, the quickest one."""

from typing import NamedTuple

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each, same
from lessons.scaling.exercises.flat_lists import flat_list


class Model(NamedTuple):
    """An invented model and its network, whose steps and memory are functions of a layout."""

    work: float
    states: float
    activations: float
    wire: float
    width: float

    def seconds(self, data, tensor, pipeline, micro_batches, micro_batch):
        """Of a step."""
        small_products = 1 + 0.3 * self.width * tensor / micro_batch / 8  # which use a GPU less well
        stage = self.work * micro_batch / (tensor * pipeline) * small_products
        stage += 0.4 * self.wire * (tensor - 1) * micro_batch
        all_reduce = self.wire * 40 * (data - 1) / data * self.states / (tensor * pipeline) / 9
        return (micro_batches + pipeline - 1) * stage + all_reduce

    def held(self, data, tensor, pipeline, micro_batches, micro_batch):
        """GiB of a rank."""
        in_flight = micro_batch * min(pipeline, micro_batches)
        return (self.states + self.activations * in_flight) / (tensor * pipeline)


SMALL = Model(work=60, states=20, activations=6, wire=0.02, width=1)
LARGE = Model(work=900, states=900, activations=40, wire=0.01, width=2)
SLOW_NETWORK = Model(work=80, states=120, activations=12, wire=0.5, width=3)
HUGE = Model(work=5000, states=90000, activations=500, wire=0.1, width=1)


class Cluster(NamedTuple):
    gpus: int
    batch: int
    limit: float
    """GiB of a GPU."""
    node: int
    """GPUs in one machine."""
    model: Model

    def __str__(self):
        return f"{self.gpus} GPUs of {self.limit} GiB, batch {self.batch}, nodes of {self.node}"


class ChooseLayout(Alone):
    title = "The quickest layout that fits"
    task = ("A layout is a tuple `(data, tensor, pipeline, micro_batches, micro_batch)`. `seconds(*layout)` "
            "returns how long a step takes, and `held(*layout)` how many GiB a rank holds. Return the "
            "quickest layout with `data * tensor * pipeline == gpus` and `data * micro_batches * micro_batch "
            "== batch` that holds at most `limit` GiB. Tensor-parallel ranks share one node, so `tensor` "
            "must divide `node`, the number of GPUs in one machine. If no layout fits, return `None`.")
    hints = (
        "Loop over each `tensor` that divides `node` and `gpus`, then over each `pipeline` that divides the "
        "rest. `data` follows.",
        "Then loop over each `micro_batch` that divides `batch // data`. `micro_batches` follows.",
        "`min(fitting, key=lambda layout: seconds(*layout), default=None)`",
    )
    explanation = "The answer tries every layout, at most 146 here. A cost model answers in microseconds."
    why = ("a planner does no more than this. Its quality is that of its cost model, so compare the model "
           "with measured runs, as the lesson does with table B.")

    cases = {str(cluster): cluster for cluster in (
        Cluster(16, 64, 80, 8, SMALL), Cluster(64, 128, 80, 8, LARGE), Cluster(32, 96, 39, 4, SLOW_NETWORK),
        Cluster(12, 60, 60, 8, SMALL), Cluster(12, 48, 40, 4, SLOW_NETWORK), Cluster(6, 8, 80, 6, SMALL),
        Cluster(64, 256, 80, 8, HUGE), Cluster(16, 4, 60, 8, LARGE), Cluster(4, 2, 80, 1, SMALL),
        Cluster(20, 6, 80, 8, SMALL))}

    def answer(gpus, batch, seconds, held, limit, node):
        fitting = []
        for tensor in (t for t in range(1, node + 1) if node % t == 0 and gpus % t == 0):               #: tensor
            for pipeline in (p for p in range(1, gpus // tensor + 1) if gpus // tensor % p == 0):       #: pipeline
                data = gpus // tensor // pipeline
                for micro_batch in (m for m in range(1, batch + 1) if batch % (data * m) == 0):         #: micro_batch
                    layout = data, tensor, pipeline, batch // (data * micro_batch), micro_batch
                    if held(*layout) <= limit:                                                          #: fits
                        fitting.append(layout)
        return min(fitting, key=lambda layout: seconds(*layout), default=None)                          #: quickest

    def observe(choose_layout, cluster):
        model = cluster.model
        returned = choose_layout(cluster.gpus, cluster.batch, model.seconds, model.held, cluster.limit, cluster.node)
        layout = flat_list(returned)
        if isinstance(layout, str) or len(layout) != 5 or any(number < 1 or number % 1 for number in layout):
            return {"returned": str(layout), "layout": None, "seconds": 0.0, "GiB": 0.0}
        layout = tuple(map(int, layout))
        return {"returned": "five whole numbers", "layout": layout,
                "seconds": float(f"{model.seconds(*layout):.9g}"), "GiB": model.held(*layout)}

    # ---------------------------------------------------------------------------------------- what must hold

    def breaks_a_rule(mine, wanted, cluster):
        if mine["layout"] is None:
            return None
        data, tensor, pipeline, micro_batches, micro_batch = mine["layout"]
        ranks = data * tensor * pipeline
        if ranks != cluster.gpus:
            return f"{mine['layout']}: its ranks are {data} · {tensor} · {pipeline} = {ranks}", f"{cluster.gpus}"
        samples = data * micro_batches * micro_batch
        if samples != cluster.batch:
            return f"{mine['layout']}: its batch is {samples}", f"{cluster.batch}"
        if cluster.node % tensor:
            return f"{mine['layout']}: {tensor} does not divide the {cluster.node} GPUs of a node", "it does"

    def too_large(mine, wanted, cluster):
        if mine["GiB"] > cluster.limit:
            return f"{mine['layout']} holds {mine['GiB']:.1f} GiB", f"at most {cluster.limit}"

    def too_slow(mine, wanted, cluster):
        if mine["seconds"] > wanted["seconds"]:
            quickest = f"{wanted['layout']}: {wanted['seconds']:.2f} s"
            return f"{mine['layout']} takes {mine['seconds']:.2f} s", quickest

    rules = (
        same("returned", "return the layout alone, or `None` if none fits. Do you try all layouts? One "
                         "that holds exactly `limit` fits"),
        each(breaks_a_rule, "the task says what the five numbers must satisfy"),
        each(too_large, "where do you compare `held` with `limit`?"),
        each(too_slow, "Do you try all layouts? Is the quickest one, by `seconds`, among those that you "
                       "compare?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("it does not fit: ask `held` before you choose", fits="if True:"),
        mistake("a layout that holds exactly `limit` fits, too", fits="if held(*layout) < limit:"),
        mistake("`tensor` must divide the GPUs of a node",
                tensor="for tensor in (t for t in range(1, node + 1) if gpus % t == 0):"),
        mistake("`tensor` must divide the number of GPUs, too",
                tensor="for tensor in (t for t in range(1, node + 1) if node % t == 0):"),
        mistake("do you try pipelines?",
                pipeline="for pipeline in (p for p in range(1, 2) if gpus // tensor % p == 0):"),
        mistake("do you try micro-batches of more than one sample?",
                micro_batch="for micro_batch in (m for m in (1,) if batch % data == 0):"),
        mistake("divisors need not be powers of 2",
                pipeline="for pipeline in (p for p in (1, 2, 4, 8, 16, 32) if gpus // tensor % p == 0):"),
        mistake("return the quickest layout, not the smallest",
                quickest="return min(fitting, key=lambda layout: held(*layout), default=None)"),
    )


choose_layout = ChooseLayout()
