"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "train_on_two_machines": (
        "What must be changed in `train.py` so that it trains on two machines?", {
            "nothing": "It asks the environment for all that it needs to know.",
            "the backend: gloo knows only one machine": "It also talks over TCP, between any machines.",
            "the address of the first machine": "The agent puts it into the environment, as MASTER_ADDR.",
            "`LOCAL_RANK` for `RANK`":
                "It already uses each where it belongs: LOCAL_RANK for the device, RANK for the data.",
        }),
    "stranger_at_store": (
        "A stranger reaches the store's port. What does it need to read and change what is there?", {
            "nothing": "The store asks nobody who he is.",
            "the job's `rdzv-id`": "That is the name of some keys, and keys can be listed or guessed.",
            "a password": "There is none to be set.",
        }),
    "least_micro_batch": (
        "With these two numbers, over 50 Mbit/s: in which way does a micro-batch take least?", {
            "accumulating 4 micro-batches": "A quarter of the bits for each micro-batch.",
            "overlap, as DDP does":
                "It hides what is shorter: here computing is, by far. The cable is busy all the time.",
            "float16": "Half of the bits, half of the time. One other sends less.",
        }),
    "node_killed": (
        "Node 1 is killed. What happens to the rank on node 0?", {
            "it fails, and is started again":
                "Its collective fails. The agent starts it in a new world, and it loads the snapshot.",
            "its agent is told, and kills it": "No agent hears of it before the agents meet again.",
            "it trains on, alone": "It is in the middle of a collective with a rank that is gone.",
            "it waits for ever":
                "Not here: when a process is killed, the system closes its connections, and the collective "
                "fails. A machine that loses its power closes nothing: then the rank waits for the group's "
                "time-out, half an hour with gloo if you do not say otherwise.",
        }),
}
