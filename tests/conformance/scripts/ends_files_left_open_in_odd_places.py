"""Files are written to the end wherever they are kept: in a closure, a class, a cycle, another module."""
# nprocs: 1
import threading

import sibling


class Kept:
    file = open("class.txt", "w")


def closure(file=open("default.txt", "w")):  # noqa: B008
    inside = open("closure.txt", "w")
    return lambda: [each.write("x") for each in (inside, file)]


closure()()
Kept.file.write("x")
cycle = [open("cycle.txt", "w")]
cycle.append(cycle)
cycle[0].write("x")
local = threading.local()
local.file = open("local.txt", "w")
local.file.write("x")
sibling.log.write("x")
