"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "train_on_two_machines": (
        "In lesson 06, two ranks on one machine had 69, then 86, then 86 % of the test digits right. What do two "
        "machines print, with one rank each?", {
            "the same": "The script reads all that it needs to know from the environment, and the agents set that. So "
                        "two ranks compute the same, wherever they are.",
            "an error: gloo knows only one machine": "gloo talks over TCP, which connects any machines.",
            "an error: nobody has told `train.py` the first machine's address": "The agent puts it into the "
                                                                                "environment, as MASTER_ADDR.",
            "other numbers, twice: each machine trains alone": "The agents meet before they start ranks, and count "
                                                               "all ranks. So the world has two.",
        }),
    "stranger_at_store": (
        "A process that is no part of the job knows the store's address and port. What can it do there?", {
            "read and write": "By default neither the store nor the gradients have a password or encryption. The "
                              "store does not ask who connects. Who writes into the agents' store can run code on "
                              "your nodes, because the agents unpickle what they read there.",
            "nothing, without the job's `rdzv-id`": "It is a part of some keys, and keys can be listed or guessed.",
            "read, but not write": "The store has no rights to give. Whoever connects may do everything.",
        }),
    "overlap_over_slow_cable": (
        "`by hand`, a step needs the sum of these two times. How much of that sum does DDP's overlap save, at "
        "most, over 50 Mbit/s?", {
            "less than a fifth": "Overlap hides the shorter of the two times, here computing, and only the part of it "
                                 "that comes after the first gradients. The cable is busy for all the rest.",
            "about half": "It cannot save half even if both times are equal, because forward, and the last layer's "
                          "backward, come before the first gradient. Here sending takes longer than computing.",
            "nearly all of the sending": "Sending can hide only behind computing, and computing is over long before "
                                         "the last gradient is sent.",
        }),
    "node_killed": ("Node 1 is killed. What happens to the rank on node 0, which comes to an all-reduce?", {
        "it fails and is started again": "The all-reduce loses its connection and raises an error. So a rank has "
                                         "failed: its agent asks for a meeting, starts it again as the only rank, "
                                         "and it loads the snapshot.",
        "its agent is told, and kills it": "No agent hears of it: nobody is left on node 1 to ask for a meeting.",
        "it trains on, alone": "An all-reduce needs every rank of its group, and one is gone.",
        "it waits for ever": "When a process is killed, the system closes its connections, so the collective "
                             "fails. If the machine loses its power, nothing is closed, and the rank waits "
                             "for the timeout of the group.",
    }),
}
