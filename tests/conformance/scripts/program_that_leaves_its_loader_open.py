"""A training that stops in the middle of an epoch; none of its loader's persistent workers is left behind."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Squares(Dataset):
    """Numbers with their squares."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor([float(index) ** 2])


def note(worker):
    """A worker leaves without closing its files. So this text is lost, by launch as by torchrun."""
    global log
    log = open(f"worker-{os.environ['RANK']}-{worker}.txt", "w")
    log.write(f"worker {worker} has started")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Squares()
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False), num_workers=2,
                        worker_init_fn=note, persistent_workers=True, multiprocessing_context="fork")
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for step, (numbers, squares) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(numbers), squares).backward()
            optimizer.step()
            print(f"epoch {epoch}, step {step}: {numbers.flatten().tolist()}")
            if epoch == 1 and step == 2:
                return loader


if __name__ == "__main__":
    left = main()
    print("workers still run")
