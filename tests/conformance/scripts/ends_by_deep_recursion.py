"""A function without end is a RecursionError, at about a thousand calls."""
# nprocs: 1
deepest = 0


def dig(depth=1):
    global deepest
    deepest = depth
    dig(depth + 1)


try:
    dig()
except RecursionError:
    print(970 < deepest < 1000)
dig()
