def report(name):
    print("the learner's report of", name)
