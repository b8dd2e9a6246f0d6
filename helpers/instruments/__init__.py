"""What a run did, counted: lessons show it, and checks judge by it.

    collectives   which collectives a rank asked for, the bytes of each, and what nobody waited for
    memory        the bytes of tensors that are alive, and the most there ever were
    calls         how often a function was called, and with what
    waits         which rank waited in vain, at which line; and whether the machine had time for it
    hangs         what flight recorders hold of a hang on purpose
    wire          the bytes that really left over TCP
    files         which files a process changes, who waits until that is done, and what a death would leave
    traces        what torch.profiler wrote, read: who computed, communicated or waited, and when
    costs         what a step would cost on a cluster

Each module is imported by name: `from helpers.instruments.calls import counted_calls`.
"""
