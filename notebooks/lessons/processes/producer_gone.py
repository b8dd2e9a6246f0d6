"""A tensor waits in a Queue while the process that put it there ends: can it still be read?

    launch("producer_gone.py", nprocs=1)
"""

import io
import os
import sys
from multiprocessing.util import get_temp_dir

import torch
import torch.multiprocessing as mp


def put_and_leave(queue, done):
    """Put a tensor. Only a note travels: the name of a socket at which this process hands out the memory."""
    queue.put(torch.arange(3.0))
    queue.close()
    queue.join_thread()  # the note is sent; when this process ends in the normal way, it removes its socket


def put_and_die(queue, done):
    """The same, but end without tidying up, as a process that is killed. The socket stays."""
    put_and_leave(queue, done)
    os._exit(0)


def put_and_stay(queue, done):
    """Put a tensor, and stay until the consumer has it."""
    queue.put(torch.arange(3.0))
    done.wait(60)


def put_bytes(queue, done):
    """Put the bytes of the tensor. They do not need this process any more."""
    buffer = io.BytesIO()
    torch.save(torch.arange(3.0), buffer)
    queue.put(buffer.getvalue())


def received_from(producer, context):
    """Start a producer, come late, and return what the queue then gives, or the error."""
    queue = context.Queue()
    done = context.Event()
    process = context.Process(target=producer, args=(queue, done))
    process.start()
    seconds = 60
    if producer is put_and_stay:
        seconds = 0.5  # it waits for us, so do not wait for its end
    process.join(seconds)
    try:
        message = queue.get(timeout=60)
        if isinstance(message, bytes):
            return torch.load(io.BytesIO(message))
        return message
    except (OSError, RuntimeError) as error:  # RuntimeError: by the strategy file_system, which shares by a name
        return type(error).__name__
    finally:
        done.set()
        process.join(10)


if __name__ == "__main__":
    get_temp_dir()  # makes the folder for all sockets here, so that this process removes it
    context = mp.get_context("fork" if sys.platform == "linux" else "spawn")  # nothing has computed yet
    for producer in (put_and_leave, put_and_die, put_and_stay, put_bytes):
        print(f"{producer.__name__:14}", received_from(producer, context))
