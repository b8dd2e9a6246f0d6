"""Train the digits on all ranks: tests and saves after every epoch, resumes. Without a file, nothing is saved.

    torchrun --nproc-per-node=2 train.py snapshot.pt
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from helpers import report
from helpers.data import Digits


def accuracy(net, images, labels):
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    net.eval()
    with torch.no_grad():
        right = (net(images[mine]).argmax(1) == labels[mine]).sum()
    net.train()
    dist.all_reduce(right)
    return right / len(labels)


def random_states(device):
    cpu = torch.get_rng_state()
    if device.type == "cuda":
        return cpu, torch.cuda.get_rng_state(device)
    return cpu, None


def save(state, path):
    with open(f"{path}.unfinished", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # on the disk, not in the system's memory
    os.replace(f"{path}.unfinished", path)  # atomically: all or nothing


def main(options):
    local_rank = int(os.environ["LOCAL_RANK"])
    local_size = int(os.environ["LOCAL_WORLD_SIZE"])
    if 0 < torch.cuda.device_count() < local_size:
        raise SystemExit(f"{torch.cuda.device_count()} GPU(s) for {local_size} ranks: start as many ranks as GPUs, or "
                         'set CUDA_VISIBLE_DEVICES="" to train on the CPU, over gloo')
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        device_ids = [local_rank]
    else:
        device = torch.device("cpu")
        device_ids = None
        dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print(f"{world_size} rank(s) over {dist.get_backend()}, on {device.type}")
    torch.set_num_threads(1)  # so small a network is not quicker with more
    torch.manual_seed(rank)  # another dropout in each rank
    layers = nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)
    net = nn.Sequential(*layers).to(device)
    model = net
    if options.compile:
        model = torch.compile(model, backend=options.compile)
    model = DistributedDataParallel(model, device_ids=device_ids)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    scaler = torch.amp.GradScaler(device.type, enabled=options.fp16)  # for half precision
    parts = {"model": net, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    first = 0
    if options.path and os.path.exists(options.path):
        snapshot = torch.load(options.path, map_location="cpu")
        for name, part in parts.items():
            part.load_state_dict(snapshot[name])
        cpu, cuda = snapshot["random"][rank]
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
        first = snapshot["epoch"] + 1
    test_images, test_labels = Digits(train=False).tensors()
    test_images, test_labels = test_images.to(device), test_labels.to(device)
    data = TensorDataset(*Digits(train=True).tensors())
    sampler = DistributedSampler(data)  # each rank its share
    loader = DataLoader(data, batch_size=64 // world_size, sampler=sampler)
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)  # another order in every epoch
        for step, (images, labels) in enumerate(loader):
            if (epoch, step) == (options.die_in_epoch, 5):
                os.kill(os.getpid(), signal.SIGKILL)  # as if its machine were gone
            images, labels = images.to(device), labels.to(device)
            with torch.autocast(device.type, torch.float16, enabled=options.fp16):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step % 2 == 0:
                report(epoch=epoch, step=step, loss=loss.item())  # `.item()` waits for the GPU
        scheduler.step()
        right = accuracy(net, test_images, test_labels)
        random = [None] * world_size
        dist.all_gather_object(random, random_states(device))
        if rank == 0:
            print(f"epoch {epoch}: {right:.0%} of the test digits are right")
        if rank == 0 and options.path:
            state = {name: part.state_dict() for name, part in parts.items()}
            save({"epoch": epoch, "random": random, **state}, options.path)
    dist.barrier()  # nobody leaves while others still talk
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path", nargs="?", help="where the snapshot is")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--fp16", action="store_true", help="autocast and a gradient scaler")
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="torch.compile the model")
    parser.add_argument("--die-in-epoch", type=int, help="it kills itself there")
    main(parser.parse_args())
