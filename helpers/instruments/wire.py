"""The bytes that really left this process over TCP, as the system counts them."""

import contextlib
import os
import socket
import struct

_SENT_AND_REPEATED = 200  # where they stand in `struct tcp_info`, two numbers of 64 bits; since Linux 4.19


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
    connections, total = {}, 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            connections[os.readlink(f"/proc/self/fd/{name}")] = int(name)  # once, however often it is open
    for link, number in connections.items():
        with contextlib.suppress(OSError):  # closed meanwhile, or not TCP
            if link.startswith("socket:"):
                with socket.socket(fileno=os.dup(number)) as connection:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    sent, repeated = struct.unpack_from("QQ", info, _SENT_AND_REPEATED)
                    total += sent - repeated
    return total
