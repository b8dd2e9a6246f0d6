"""A training under torch.profiler, which still runs at the end, and waits for its next cycle: two have their report."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def report(profiler):
    """Write how often the training's own ranges and torch's operators were seen."""
    counts = {event.key: event.count for event in profiler.key_averages()}
    with open(f"profile-{dist.get_rank()}.txt", "a") as file:
        for name in ("load", "aten::linear", "Optimizer.step#SGD.step"):
            file.write(f"until step {profiler.step_num}: {name} {counts.get(name)}\n")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    profiler = profile(activities=[ProfilerActivity.CPU], on_trace_ready=report,
                       schedule=schedule(wait=1, warmup=1, active=2))
    profiler.start()
    for _ in range(9):
        with record_function("load"):
            images = torch.ones(2, 4)
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
        profiler.step()
    print("the profiler is at step", profiler.step_num)
    dist.destroy_process_group()
    return profiler


if __name__ == "__main__":
    left = main()
