"""A hunt: rows that arrive by sender, and are taken to be sorted by expert."""

from collections import Counter

import torch

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import holds, same


class RowsOfTwo(Alone):
    title = "Hunt: the loss that falls, a little less"
    task = ("This rank has several experts, `nets`. `receive`, [ranks, experts of this rank], says how many "
            "rows came from each rank for each of them. Each rank has sent its rows sorted by expert, and "
            "`rows` holds them **as they arrived**: first all of rank 0. Return the results, in the order of "
            "`rows`. Call each net once, with its own rows and no others.")
    hints = (
        "Write down for two ranks and two experts whose each row is: rank 0's for expert 0, rank 0's "
        "for expert 1, then?",
        "`repeat_interleave` makes from the counts, in this order, the expert of each row.",
    )
    explanation = "A mask picks an expert's rows out of all parts, and puts the results back."
    why = ("net 0 gets mostly the rows of rank 0, and net 1 those of rank 1, whatever the router chose. Each "
           "net learns the tokens of its rank, so training makes the best of it. Only a comparison with a dense layer "
           "shows it.")

    # How many rows came, by rank and expert.
    cases = {
        "two ranks, two experts": ((2, 1), (1, 3)),
        "three ranks": ((0, 2), (2, 2), (1, 0)),
        "three experts": ((1, 0, 2), (0, 3, 1)),
    }

    def answer(rows, receive, nets):
        import torch

        expert = torch.arange(len(nets)).repeat(len(receive)).repeat_interleave(receive.flatten())      #: expert
        done = torch.empty_like(rows)                                                                   #: empty
        for e, net in enumerate(nets):
            done[expert == e] = net(rows[expert == e])
        return done

    def observe(rows_of_two, counts):
        receive = torch.tensor(counts)
        arrived = torch.arange(2.0 * receive.sum()).view(-1, 2).requires_grad_()
        rows = arrived.clone()  # as in training: not a leaf of the graph
        calls = Counter()
        seen = [0] * receive.shape[1]

        def net_of(expert):
            def net(x):
                calls[expert] += 1
                seen[expert] += len(x)
                return 1000 * (expert + 1) + x

            return net

        nets = [net_of(expert) for expert in range(receive.shape[1])]
        done = rows_of_two(rows, receive, nets)
        total = done.sum() + torch.zeros((), requires_grad=True)  # zeros, where the graph was cut
        gradient, = torch.autograd.grad(total, arrived, materialize_grads=True)
        return {
            "results": done.tolist(),
            "calls of a net": max(calls.values(), default=0),
            "rows by net": seen,
            "gradient of the rows": gradient.tolist(),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    order_of_arrival = "in which order do the rows arrive: by expert, or by the rank that sent them?"

    def called_again(mine, wanted, counts):
        times = mine[0]["calls of a net"]
        if times > 1:
            return f"a net was called {times} times", "once each"

    rules = (
        same("results", f"{order_of_arrival} And how does its net's result get into each row?"),
        holds(called_again, "collect all rows of an expert first"),
        same("rows by net", "an expert computes its own rows only"),
        same("gradient of the rows", "are the results in the graph of `rows`? The layers before learn through it"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(order_of_arrival, expert="expert = torch.arange(len(nets)).repeat_interleave(receive.sum(0))"),
        mistake("`receive` has a row for each rank that sends",
                expert="expert = torch.arange(len(nets)).repeat(len(receive)).repeat_interleave(receive.T.flatten())"),
        mistake("the results must be in the order in which the rows came",
                empty="done = rows.clone()[expert.argsort(stable=True)]\n"
                      "rows = done\n"
                      "expert = expert.sort().values"),
    )


rows_of_two = RowsOfTwo()
