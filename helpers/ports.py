"""A port that a program may listen at, such as the first node of torchrun's."""

import socket


def free_port():
    """A port of the loopback interface that is free now; nothing listens on it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
