"""What a run did, counted: lessons show it, and checks judge by it.

    collectives   which collectives a rank asked for, the bytes of each, and what nobody waited for
    memory        the bytes of tensors that are alive, and the most there ever were
    calls         how often a function was called, and with what
    waits         which rank waited in vain, at which line; and whether the machine had time for it
    wire          the bytes that really left over TCP
    traces        what torch.profiler wrote, read: who computed, communicated or waited, and when
    gradients     how a parallel program's gradients differ from one process's
    costs         the bytes and the FLOPs of a model, before anyone trains it

Each module is imported by name: `from helpers.instruments.calls import counted_calls`.
"""
