"""What this lesson shows from a machine with GPUs."""

from helpers.records import experiment


@experiment(gpus=1)
def compiled_ddp():
    """Milliseconds a step of four transformer layers in DDP and bf16, eager and compiled: CUDA events, median of 20."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)

    def milliseconds(compiled):
        torch.manual_seed(0)
        layers = [nn.TransformerEncoderLayer(256, 8, 1024, dropout=0, batch_first=True) for _ in range(4)]
        model = DistributedDataParallel(nn.Sequential(*layers).to(device), device_ids=[0])
        model = torch.compile(model) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, times = torch.randn(4, 64, 256, device=device), []
        for _ in range(25):  # the first five compile, and warm up
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        return sorted(times[5:])[10]

    try:
        return {"eager": milliseconds(False), "compiled": milliseconds(True)}
    finally:
        dist.destroy_process_group()
