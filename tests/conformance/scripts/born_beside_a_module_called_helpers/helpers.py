WHOSE = "the learner's"


def launch():
    return "no launcher"
