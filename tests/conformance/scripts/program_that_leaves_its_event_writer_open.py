"""A training whose event writer is neither flushed nor closed: what its thread has written by the end is there.

The writer has the shape of TensorBoard's, which is not installed here: a bounded queue, and a daemon thread that takes
events from it and appends each to the file as a record with its length and checksums.
"""
import json
import queue
import struct
import threading
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class EventWriter:
    """add_scalar returns at once; the thread writes."""

    def __init__(self, folder, flush_secs=120):
        folder.mkdir(exist_ok=True)
        self.path = folder / "events.out"
        self.queue, self.flush_secs = queue.Queue(10), flush_secs
        threading.Thread(target=self._run, daemon=True).start()
        self.queue.put(b"brain.Event:2")

    def add_scalar(self, tag, value, step):
        self.queue.put(json.dumps({"step": step, "tag": tag, "value": value}).encode())

    def _run(self):
        while True:
            try:
                event = self.queue.get(timeout=self.flush_secs)
            except queue.Empty:
                continue
            length = struct.pack("<Q", len(event))
            record = [length, struct.pack("<I", zlib.crc32(length)), event, struct.pack("<I", zlib.crc32(event))]
            with open(self.path, "ab") as file:
                file.write(b"".join(record))
            self.queue.task_done()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    writer = EventWriter(Path(f"run-{dist.get_rank()}"))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        writer.add_scalar("learning rate", optimizer.param_groups[0]["lr"], step)
    time.sleep(0.3)  # the last validation
    dist.destroy_process_group()
