"""S4's way, ranks that stay, and pure compute, side by side in one run.

    COURSE_DATA=… .venv/bin/python tests/benchmarks/parallel_sgd.py         # MNIST, about two minutes; else the digits
    .venv/bin/python tests/benchmarks/parallel_sgd.py --check               # exits with 1 if something is not reached
    COURSE_DATA=… .venv/bin/python tests/benchmarks/parallel_sgd.py --replay  # S4's two bugs, about five minutes

S4's way spawns its workers anew every epoch and transforms every sample by itself. Its seconds, and those of the ranks
that stay, count from the call of `launch` to its end, data and tests included. Its workers compute with one thread
each, unless `--threads` says otherwise; S4 leaves it to torch, and workers that each take all cores are slower still.
Pure compute is the same number of steps on tensors that are ready, in one process per core, and nothing else.
"""

import argparse
import datetime
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from helpers import launch  # noqa: E402
from helpers.data import DataError, load  # noqa: E402
from helpers.hardware import hardware  # noqa: E402
from helpers.records import RECORDS, store  # noqa: E402

WORKERS, EPOCHS = 4, 3
#: S4's published test accuracies and losses on MNIST, epoch by epoch.
PUBLISHED = {"accuracy": (0.87, 0.92, 0.93), "loss": (0.5926, 0.3062, 0.2283)}


def compute_only(task, passes):
    """What every process of the pure compute does: its passes over a worker's shard, on tensors that are ready."""
    import torch.distributed as dist

    from lessons.parallel_sgd.ranks import train_step
    from lessons.parallel_sgd.shards import batches, labels_of, split, tensors

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    images, labels = tensors(task, rows=split(len(labels_of(task)), WORKERS)[0])
    model = task.model()
    dist.barrier()
    began = time.perf_counter()
    for number in range(passes):
        optimizer = task.optimizer(model)
        for batch in batches(len(labels), task.batch, number, 0):
            train_step(model, optimizer, images[batch], labels[batch])
    seconds = time.perf_counter() - began
    dist.barrier()
    dist.destroy_process_group()
    return seconds


def measure(name, threads):
    """One round: {way: {"seconds", and by epoch "accuracy" and "loss"}}."""
    from lessons.parallel_sgd.task import TASKS

    results = {}
    common = ["--task", name, "--epochs", str(EPOCHS)]
    own = ["--workers", str(WORKERS), "--threads", str(threads)]
    for way, script, nprocs, more in [("S4's way", "sgd_respawned.py", 1, own),
                                      ("ranks that stay", "sgd_staying.py", WORKERS, [])]:
        print(f"{way} …", file=sys.stderr)
        began = time.perf_counter()
        run = launch(script, nprocs, args=[*common, *more], show=False, timeout=1800)
        rows = [row for row in run.reports[0] if "accuracy" in row]
        results[way] = {"seconds": time.perf_counter() - began, "accuracy": [row["accuracy"] for row in rows],
                        "loss": [row["loss"] for row in rows]}
    print("pure compute …", file=sys.stderr)
    processes = min(hardware.cores, WORKERS)
    passes = -(-WORKERS * EPOCHS // processes)
    seconds = max(launch(compute_only, processes, args=(TASKS[name], passes), show=False).results)
    results["pure compute"] = {"seconds": seconds * WORKERS * EPOCHS / (passes * processes)}
    return results


PROGRAMS = ("neither bug", "fourfold loop", "sharing", "both")


def replayed(rows):
    """What S4's program reaches with its two bugs, each alone, both, and neither: {program: its last epoch}."""
    return {program: {"accuracy": row["accuracy"], "loss": row["loss"]}
            for program, row in zip(PROGRAMS, rows[EPOCHS - 1::EPOCHS], strict=True)}


def median_round(rounds):
    """Of several rounds, the one in whose middle the ratio of the first two ways stands."""
    ranked = sorted(rounds, key=lambda result: result["S4's way"]["seconds"] / result["ranks that stay"]["seconds"])
    return ranked[len(ranked) // 2]


def checks(name, results):
    """What must be reached: (what, measured, limit, whether it holds)."""
    respawned, staying, pure = (results[way] for way in ("S4's way", "ranks that stay", "pure compute"))
    rows = [
        ("S4's way / ranks that stay, seconds", respawned["seconds"] / staying["seconds"], ">=", 3.5),
        ("ranks that stay / pure compute, seconds", staying["seconds"] / pure["seconds"], "<=", 1.25),
        ("ranks that stay: accuracy above S4's way, points",
         100 * (staying["accuracy"][-1] - respawned["accuracy"][-1]), ">=", -0.3),
    ]
    if name == "MNIST":
        rows += [(f"{way}: farthest from S4's published accuracies, points",
                  max(100 * abs(ours - theirs) for ours, theirs in
                      zip(results[way]["accuracy"], PUBLISHED["accuracy"], strict=True)), "<=", 1.0)
                 for way in ("S4's way", "ranks that stay")]
    return [{"what": what, "measured": round(value, 3), "must be": f"{sign} {limit}",
             "reached": value <= limit if sign == "<=" else value >= limit} for what, value, sign, limit in rows]


def table(name, results):
    """The results as text."""
    lines = [f"{name}, {WORKERS} workers, {EPOCHS} epochs",
             f"{'':20}{'seconds':>9}{'× staying':>11}   test accuracy by epoch    test loss by epoch"]
    for way, result in results.items():
        curves = "".join("   " + " ".join(f"{value:{form}}" for value in result.get(what, ()))
                         for what, form in (("accuracy", "7.1%"), ("loss", "7.4f")))
        ratio = result["seconds"] / results["ranks that stay"]["seconds"]
        lines.append(f"{way:20}{result['seconds']:9.1f}{ratio:11.2f}{curves}".rstrip())
    if name == "MNIST":
        lines.append(f"{'S4, published':40}   {' '.join(f'{value:7.0%}' for value in PUBLISHED['accuracy'])}   "
                     f"{' '.join(f'{value:7.4f}' for value in PUBLISHED['loss'])}")
    return "\n".join(lines)


def machine():
    """Where this was measured: no host or user name, no path."""
    return {"cpu": hardware.cpu, "cores": hardware.cores, "memory_gib": round(hardware.memory_gib, 1),
            "load_before": round(os.getloadavg()[0], 2), "date": datetime.date.today().isoformat(),
            "versions": hardware.versions}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=("MNIST", "Digits"), help="MNIST where it is there, else the digits")
    parser.add_argument("--rounds", type=int, default=1, help="how often all ways are measured in turn")
    parser.add_argument("--threads", type=int, default=1, help="of each of S4's workers (S4 leaves it to torch)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if something that must be reached is not")
    parser.add_argument("--replay", action="store_true", help="only S4's program with and without its bugs")
    parser.add_argument("--json", type=Path,
                        help="where the numbers go; by default, the record that the lesson shows is replaced")
    options = parser.parse_args()
    options.json = options.json or RECORDS / ("published_sgd.json" if options.replay else "parallel_sgd.json")
    name = options.task
    if name is None:
        try:
            load("MNIST")
            name = "MNIST"
        except DataError as error:
            print(f"{error}\nMeasuring on the digits instead: there, starting dominates.", file=sys.stderr)
            name = "Digits"
    here = machine()
    if options.replay:
        run = launch("sgd_published.py", 1, args=["--task", name, "--epochs", str(EPOCHS)], timeout=7200)
        content = {"machine": here, "task": name, "workers": WORKERS, "epochs": EPOCHS,
                   "results": replayed(run.reports[0])}
        store(options.json, content)
        return
    launch(int, 1, show=False)  # the fork server's import of torch is nobody's time
    rounds = [measure(name, options.threads) for _ in range(options.rounds)]
    results = median_round(rounds)
    checked = checks(name, results)
    print(table(name, results), "\n\nMust be reached")
    for row in checked:
        print(f"  {'ok  ' if row['reached'] else 'FAIL'} {row['what']:66} {row['measured']:8.3f}   {row['must be']}")
    content = {"machine": here, "task": name, "workers": WORKERS, "epochs": EPOCHS, "threads": options.threads,
               "results": results, "rounds": rounds, "published": PUBLISHED, "checks": checked}
    store(options.json, content)
    missed = [row["what"] for row in checked if not row["reached"]]
    if options.check and missed:
        sys.exit("not reached: " + "; ".join(missed))


if __name__ == "__main__":
    main()
