"""What the published tables B and D to N say, as runs of the planner, with the assumptions where they say nothing."""

from helpers.instruments.costs import Shape
from lessons.scaling import planner
from lessons.scaling.planner import Habits, Layout, Run

CARD = 50e9  #: bytes/s of a network card of 400 Gbit/s
#: Computing hides all of these messages, says table E's source; we assume it of F and H, too.
OVERLAPPING = Habits(hidden=1, data_hidden=1)
#: We assume that half of FSDP's messages hides.
FSDP = Habits(zero=3, data_hidden=0.5)


def clusters(tables):
    """{name: `Cluster`} of the tables: "A" with the bandwidths that were measured, others by their description."""
    def described(gpu, card):
        return planner.described(*tables["gpus"][gpu], card)

    peak, memory, _ = tables["gpus"]["H100"]
    all_reduce, all_gather = ({int(gpus): 1e9 * gb for gpus, gb in tables["A"][kind].items()}
                              for kind in ("all_reduce", "all_gather"))
    return {"A": planner.Cluster(peak, memory, CARD, all_reduce, all_gather), "H100": described("H100", CARD),
            "A100 80GB": described("A100 80GB", CARD / 2), "A100 40GB": described("A100 40GB", CARD / 2)}


def gpt(layers, width, vocabulary, keys=1.0, tied=False):
    """A model without gates: its feed-forward nets have two matrices of width × 4 width."""
    return Shape(layers, width, 8 * width / 3, vocabulary, tied, keys)


def table_b(tables):
    """nanotron: the best layout of a sweep for each model and number of nodes. We assume that it hides no message."""
    measured = tables["A"]
    cluster = clusters(tables)["A"]
    for nodes, name, mfu, *ways, zero in tables["B"]["rows"]:
        shape = Shape(**measured["shapes_inferred"][name], vocabulary=measured["vocabulary_inferred"])
        published = mfu / 100 * cluster.peak / shape.flops(4096)
        yield Run(f"{name} on {8 * nodes}", shape, Layout(*ways), cluster, 4096, Habits(zero=zero), published)


def table_d(tables):
    """torchtitan: Llama 3.1 8B on 8 and 128 GPUs. Selective checkpointing: we assume half of forward."""
    table = tables["D"]
    cluster = clusters(tables)["H100"]
    for name, row in table["tokens"].items():
        for gpus, published in row.items():
            yield Run(f"8B {name} on {gpus}", Shape(**table["shape"]), Layout(int(gpus), 1, 1, 1, 2), cluster,
                      table["length"], FSDP._replace(recompute=0.5), published)


def table_e(tables):
    """Megatron-Core. We assume pieces of one layer each, and a network as table F's."""
    table = tables["E"]
    cluster = clusters(tables)["H100"]
    for name, _, width, layers, tensor, pipeline, gpus, batch, tflops, _ in table["rows"]:
        shape = gpt(layers, width, table["vocabulary"])
        layout = Layout(48, tensor, pipeline, batch // 48, 1)
        habits = OVERLAPPING._replace(pieces=layers // pipeline)
        yield Run(f"{name} on {gpus:,}", shape, layout, cluster, 4096, habits, 1e12 * tflops / shape.flops(4096))


def table_f(tables):
    """Llama 3 405B. We assume pieces of one layer each."""
    table = tables["F"]
    shape = Shape(**table["shape"])
    cluster = clusters(tables)["H100"]
    for gpus, *ways, tflops in table["rows"]:
        yield Run(f"405B on {gpus:,}", shape, Layout(*ways), cluster, table["length"],
                  OVERLAPPING._replace(pieces=8), 1e12 * tflops / shape.flops(table["length"]))


def table_g(tables, gpu):
    """MPT with FSDP on one kind of GPU. Of the H100s' network we assume cards of 400 Gbit/s."""
    table = tables["G"]
    cluster = clusters(tables)[gpu]
    for name, length, gpus, micro_batch, micro_batches, zero, recompute, published in table["rows"][gpu]:
        shape = gpt(*table["shapes"][name], table["vocabulary"], tied=True)
        yield Run(f"{name}, {length:,} tokens, on {gpus}", shape, Layout(gpus, 1, 1, micro_batches, micro_batch),
                  cluster, length, FSDP._replace(zero=zero, recompute=recompute), published)


def nvidias_recipes(tables, letter):
    cluster = clusters(tables)["H100"]
    for name, model in tables[letter]["models"].items():
        tensor, pipeline, pieces, micro_batches, micro_batch = model["layout"]
        hidden = model.get("hidden", 8 * model["width"] / 3)  # without gates, as `gpt`
        shape = Shape(model["layers"], model["width"], hidden, model["vocabulary"], False, model["keys"])
        for gpus, step in model["seconds"].items():
            data = int(gpus) // (tensor * pipeline)
            layout = Layout(data, tensor, pipeline, micro_batches, micro_batch)
            tokens = micro_batches * micro_batch * model["length"] / (tensor * pipeline)  # of each GPU
            yield Run(f"{name} on {gpus}", shape, layout, cluster, model["length"],
                      OVERLAPPING._replace(pieces=pieces), tokens / step)


def table_h(tables):
    """NVIDIA's recipes, in NeMo."""
    return nvidias_recipes(tables, "H")


def table_i(tables, gpu, together=planner.NODE):
    """fms-fsdp: Llama 2 on one kind of GPU. We read its Gbit/s as what the GPUs of a node have `together`. Its code
    sums gradients in bf16."""
    table = tables["I"]
    gpus, gbit = table["clusters"][gpu].values()
    cluster = planner.described(*tables["gpus"][gpu], 1e9 * gbit / 8 / together)
    for name, layers, width, hidden, keys, recompute, published in table["rows"]:
        yield Run(f"{name} on {gpus}", Shape(layers, width, hidden, table["vocabulary"], False, keys),
                  Layout(gpus, 1, 1, 1, 2), cluster, table["length"], FSDP._replace(recompute=recompute, summed=2),
                  published[gpu])


def table_j(tables):
    """Megatron-LM of 2021 on A100s. We assume that TP takes up to a node, micro-batches of one text, one piece a stage,
    no message hidden, and table G's network."""
    table = tables["J"]
    cluster = clusters(tables)["A100 80GB"]
    for name, layers, width, parts, gpus, batch, tflops in table["rows"]:
        shape = gpt(layers, width, table["vocabulary"], tied=True)
        tensor, data = min(parts, planner.NODE), gpus // parts
        # The published FLOPs count the layers' forward twice.
        flops = shape.flops(2048) + 2 * layers * shape.layer + 4 * layers * width * 2048
        yield Run(f"{name} on {gpus:,}", shape, Layout(data, tensor, parts // tensor, batch // data, 1),
                  cluster, 2048, Habits(recompute=1), 1e12 * tflops / flops)


def table_k(tables):
    """torchtitan: Llama 2 and 3 on 64 A100s. We assume table G's network."""
    table = tables["K"]
    cluster = clusters(tables)["A100 80GB"]
    for name, layers, width, hidden, keys, vocabulary, length, micro_batch, recompute, published in table["rows"]:
        yield Run(f"{name} on {table['gpus']}", Shape(layers, width, hidden, vocabulary, False, keys),
                  Layout(table["gpus"], 1, 1, 1, micro_batch), cluster, length,
                  FSDP._replace(recompute=recompute), published)


def table_l(tables):
    """NVIDIA's recipes for Llama 3.1. Two GPUs share a text, which we count as data parallelism."""
    return nvidias_recipes(tables, "L")


def table_m(tables):
    """Megatron-DeepSpeed of 2021 and 2022 on A100s. We assume one piece a stage, and no message hidden."""
    for name, layers, width, vocabulary, data, tensor, pipeline, *micro, zero, gbit, step in tables["M"]["rows"]:
        cluster = planner.described(*tables["gpus"]["A100 80GB"], 1e9 * gbit / 8)
        layout = Layout(data, tensor, pipeline, *micro)
        gpus = data * tensor * pipeline
        tokens = data * layout.micro_batches * layout.micro_batch * 2048 / gpus
        yield Run(f"{name} on {gpus:,}", gpt(layers, width, vocabulary, tied=True), layout, cluster, 2048,
                  Habits(recompute=1, zero=zero), tokens / step)


def table_n(tables):
    """torchtitan: Llama 3.1, FSDP with TP. We assume texts of 8,192 tokens, and that async TP hides its messages."""
    table = tables["N"]
    cluster = clusters(tables)["H100"]
    for name, layers, width, hidden, keys, gpus, tensor, micro_batch, recompute, hides, published in table["rows"]:
        shape = Shape(layers, width, hidden, table["vocabulary"], False, keys)
        yield Run(f"{name} on {gpus}", shape, Layout(gpus // tensor, tensor, 1, 1, micro_batch), cluster,
                  table["length_inferred"], FSDP._replace(recompute=recompute, hidden=hides), published)


#: Which library's numbers each table is predicted with. Of F, H, I and K to N nothing is fitted.
LIBRARY = {"B": "nanotron", "E": "Megatron", "F": "Megatron", "H": "Megatron", "G H100": "FSDP, H100",
           "G A100 80GB": "FSDP, A100 80GB", "G A100 40GB": "FSDP, A100 40GB", "I A100 80GB": "FSDP, A100 80GB",
           "I H100": "FSDP, H100", "J": "Megatron, A100", "K": "FSDP, A100 80GB", "L": "Megatron",
           "M": "Megatron, A100", "N": "FSDP, H100"}


def rows(tables):
    """{table: list of its runs}, of all tables in LIBRARY."""
    result = {"B": table_b(tables), "E": table_e(tables), "F": table_f(tables), "H": table_h(tables),
              "J": table_j(tables), "K": table_k(tables), "L": table_l(tables), "M": table_m(tables),
              "N": table_n(tables)}
    for gpu in tables["G"]["rows"]:
        result[f"G {gpu}"] = table_g(tables, gpu)
    for gpu in tables["I"]["clusters"]:
        result[f"I {gpu}"] = table_i(tables, gpu)
    return {name: list(runs) for name, runs in result.items()}


def small(rows):
    """{library: the runs that it is fitted on}, from `rows`."""
    result = {
        "nanotron": [run for run in rows["B"] if run.gpus <= 16],
        "Megatron": [run for run in rows["E"] if run.layout.pipeline == 1],
        "Megatron, A100": [run for run in rows["J"] if run.layout.pipeline == 1],
    }
    for name in "G H100", "G A100 80GB", "G A100 40GB":
        smallest = [run for run in rows[name] if run.name.startswith("1B") and run.gpus == 8]
        by_length = sorted(smallest, key=lambda run: run.length)
        result[LIBRARY[name]] = [by_length[0], by_length[-1]]
    result["FSDP, H100"][:1] = [run for run in rows["G H100"] if run.gpus == 8 and run.length == 2048]
    return result


def fitted(small):
    """{library: its `Software`}. What small runs cannot tell is borrowed: MPT's traffic on A100s is that on H100s,
    attention's share is the record's, or for Megatron on A100s MPT's."""
    new = planner.Software(reached=0.6, traffic=400, attention=planner.ATTENTION)  # where the search begins
    result = {name: planner.fit(small[name], new, ["reached", "traffic"]) for name in ("nanotron", "Megatron")}
    result["FSDP, H100"] = planner.fit(small["FSDP, H100"], new, ["reached", "traffic", "attention"])
    for name in "FSDP, A100 80GB", "FSDP, A100 40GB":
        result[name] = planner.fit(small[name], result["FSDP, H100"], ["reached", "attention"])
    result["Megatron, A100"] = planner.fit(small["Megatron, A100"], result["FSDP, A100 80GB"], ["reached", "traffic"])
    return result
