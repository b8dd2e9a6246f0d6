"""A hunt: two loops that share a variable, and workers that are started n times over."""

import threading

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import nothing, same
from lessons.parallel_sgd.workers import Worker


class RunEpoch(Exercise):
    title = "Hunt: an epoch that is trained n times over"
    task = ("The cell below holds the loop of the published program. Repair it, so that one epoch is one "
            "epoch: pull down once, start every worker so that all of them run side by side, wait until all "
            "have ended, and aggregate once. `start(rank)` starts a worker and returns its process, which "
            "has `join()`.")
    hints = (
        "Both loops call their variable `rank`. How often does the inner one run?",
        "Start all workers before you wait for the first one. Otherwise they run one after the other.",
    )
    explanation = ("The outer `for rank` only repeated the epoch: with n workers, every worker was started "
                   "n times. One loop starts the workers, and a second one waits for them.")
    why = ("the log showed every epoch n times and the run took n times as long. With copies, the model "
           "was right. Count what you start: if the number of passes is not what you planned, no comparison holds.")

    cases = {"3 workers": 3, "5 workers": 5, "1 worker": 1}

    def answer(n_workers, pull_down, start, aggregate):
        pull_down()                                                     #: pull
        processes = [start(rank) for rank in range(n_workers)]          #: start
        for process in processes:                                       #: wait
            process.join()                                              #: join
        aggregate()

    def observe(run_epoch, n_workers):
        calls = []
        training = []  # the ranks that train, at each of the calls
        workers = []
        all_started = threading.Event()
        threads = threading.active_count()

        def note(call):
            calls.append(call)
            training.append([worker.rank for worker in workers if worker.trains])

        def until_all_are_started():
            if threading.active_count() > threads:
                all_started.wait(5)
                all_started.set()  # if nobody has come, the other workers need not wait for it again

        def start(rank):
            workers.append(Worker(rank, until_all_are_started))
            note("start")
            if len(workers) >= n_workers:
                all_started.set()
            return workers[-1]

        run_epoch(n_workers, lambda: note("pull down"), start, lambda: note("aggregate"))

        return {
            "ranks started": ", ".join(sorted(str(worker.rank) for worker in workers)),
            "calls": ", ".join(calls),
            "still training": training[-1] if training else [],
            "ended by force": [worker.rank for worker in workers if worker.killed],
            "workers side by side": max(map(len, training), default=0),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    wait_for_all = "for which processes do you call `join()`? A pause, or a `join` with a limit, is only a guess"

    rules = (
        same("ranks started", "how often does each loop around `start(rank)` run? And what is `rank` then?"),
        same("calls", "what stands inside a loop, what does not, and in which order?"),
        nothing("still training", wait_for_all, "`aggregate()` comes after every worker has ended"),
        nothing("ended by force", "`terminate` and `kill` end a worker that still trains", "none: wait for it"),
        same("workers side by side", "when do you call `join()`? It waits until the process has ended"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("how many loops stand around `start(rank)`? One is enough",
                pull="for rank in range(n_workers):\n"
                     "    pull_down()\n"
                     "    processes = [start(rank) for rank in range(n_workers)]\n"
                     "    for process in processes:\n"
                     "        process.join()",
                start="", wait=""),
        mistake("`join()` waits until the process has ended. So start all workers before you wait for the first",
                start="for rank in range(n_workers):\n"
                      "    start(rank).join()",
                wait=""),
        mistake("a generator starts a worker only when the loop asks for it. Use a list",
                start="processes = (start(rank) for rank in range(n_workers))"),
        mistake(wait_for_all, wait=""),
        mistake("wait for every worker. The last one to start may end first", wait="processes[-1].join()"),
        mistake("`kill` ends a worker that still trains", join="process.kill()\nprocess.join()"),
        mistake("`aggregate()` is inside a loop", join="process.join()\naggregate()"),
        mistake("ranks are counted from 0", start="processes = [start(rank) for rank in range(1, n_workers + 1)]"),
    )


run_epoch = RunEpoch()
