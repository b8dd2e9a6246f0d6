NAME = "the learner's launcher"
