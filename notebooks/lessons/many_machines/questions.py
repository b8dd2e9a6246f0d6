"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "train_on_two_machines": ("What must be changed in `train.py` so that it trains on two machines?", {
        "nothing": "It reads everything that it needs to know from the environment, and the agents set that.",
        "the backend: gloo knows only one machine": "gloo talks over TCP, which connects any machines.",
        "the address of the first machine": "The agent puts it into the environment, as MASTER_ADDR.",
        "`LOCAL_RANK` instead of `RANK`": "The script uses LOCAL_RANK for the device and RANK for the data, "
                                          "as it should.",
    }),
    "stranger_at_store": (
        "Another process reaches the store's port. What does it need to read and change what is there?", {
            "nothing": "The store does not ask who connects.",
            "the job's `rdzv-id`": "It is a part of some keys, and keys can be listed or guessed.",
            "a password": "The store has none.",
        }),
    "least_micro_batch": ("With these two numbers, over 50 Mbit/s: in which way does a micro-batch take "
                          "least time?", {
        "accumulating 4 micro-batches": "It sends only a quarter of the bits for each micro-batch.",
        "overlap, as DDP does": "Overlap hides the shorter of the two. Here computing is much shorter, so "
                                "the cable is busy all the time.",
        "float16": "It sends half of the bits. Accumulating sends a quarter.",
    }),
    "node_killed": ("Node 1 is killed. What happens to the rank on node 0?", {
        "it fails and is started again": "Its collective fails. The agent starts it again with one rank, and "
                                         "it loads the snapshot.",
        "its agent is told, and kills it": "No agent hears of it before the agents meet again.",
        "it trains on, alone": "It is in the middle of a collective with a rank that is gone.",
        "it waits for ever": "When a process is killed, the system closes its connections, so the collective "
                             "fails. If the machine loses its power, nothing is closed, and the rank waits "
                             "for the timeout of the group.",
    }),
}
