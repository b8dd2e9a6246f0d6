"""The bytes that really left this process over TCP, as the system counts them."""

import contextlib
import os
import socket
import struct

#: Where `tcpi_bytes_sent` and `tcpi_bytes_retrans` stand in `struct tcp_info`, since Linux 4.19: 64 bits each.
_SENT_AND_REPEATED = 200


def wire_bytes():
    """Bytes that this process's TCP connections have sent since each was opened, repetitions apart.

    Take the difference of two calls, with a barrier before each: what waits to be sent does not count, nor
    what TCP sends again because the receiver had no core to answer in time. gloo sends over TCP, also between
    ranks of one machine.

    Raises OSError: the system is not Linux.
    Source: Linux, include/uapi/linux/tcp.h.
    """
    if not os.path.isdir("/proc/self/fd"):
        raise OSError("only Linux counts the bytes of each connection")
    sockets = {}  # by what the descriptor leads to: each once, however often it is open
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                sockets[target] = int(name)
    total = 0
    for descriptor in sockets.values():
        with contextlib.suppress(OSError):  # closed meanwhile, or not TCP
            # A duplicate, because a Python socket closes the descriptor that it was given.
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            sent, repeated = struct.unpack_from("QQ", info, _SENT_AND_REPEATED)
            total += sent - repeated
    return total
