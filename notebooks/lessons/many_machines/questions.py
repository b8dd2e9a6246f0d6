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
            "nothing": "By default neither the store nor the gradients have a password or encryption. The "
                       "store does not ask who connects.",
            "the job's `rdzv-id`": "It is a part of some keys, and keys can be listed or guessed.",
            "a password": "The store has none.",
        }),
    "overlap_over_slow_cable": (
        "`by hand`, a step needs the sum of these two times. How much of that sum does DDP's overlap save, at "
        "most, over 50 Mbit/s?", {
            "about a tenth": "Overlap hides the shorter of the two times, here computing, and only the part of it "
                             "that comes after the first gradients. The cable is busy for all the rest.",
            "about half": "That is the most it can save, and it takes two times of equal length. Here sending is "
                          "several times as long as computing.",
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
