"""A training with logs that rotate; it saves when its scheduler sends SIGUSR1, and ends well at SIGTERM."""
import logging
import logging.config
import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
logging.config.dictConfig({
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"short": {"format": "%(levelname)s %(name)s: %(message)s"}},
    "handlers": {
        "screen": {"class": "logging.StreamHandler", "formatter": "short", "level": "WARNING"},
        "file": {"class": "logging.handlers.RotatingFileHandler", "formatter": "short",
                 "filename": f"train-{rank}.log", "maxBytes": 200, "backupCount": 2},
        "memory": {"class": "logging.handlers.MemoryHandler", "capacity": 1000, "target": "file"},
    },
    "root": {"level": "INFO", "handlers": ["screen", "memory"]},
})
log = logging.getLogger("train")
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
is_to_stop = False


def save(number, frame):
    log.warning("%s at step %d: saved", signal.Signals(number).name, step)
    torch.save({"model": model.module.state_dict(), "step": step}, f"checkpoint-{rank}.pt")


def stop(number, frame):
    global is_to_stop
    save(number, frame)
    is_to_stop = True


signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, stop)
for step in range(100):
    loss = (model(torch.ones(2, 4)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.info("step %d done", step)
    if step in (4, 11):  # as the scheduler does, some time before the job's end, and then at it
        os.kill(os.getpid(), signal.SIGUSR1 if step == 4 else signal.SIGTERM)
    if is_to_stop:
        break
dist.destroy_process_group()
log.info("ended after step %d", torch.load(f"checkpoint-{rank}.pt")["step"])
