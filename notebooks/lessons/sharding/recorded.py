"""What lesson `sharding` shows from a machine with GPUs."""

from helpers.experiments import experiment


@experiment(gpus=1, seconds=10)
def a_larger_gpt():
    """Peak memory of a step of a GPT of 0.4 billion parameters: CUDA's count against the calculator's."""
    import torch
    from torch.nn.functional import cross_entropy

    from helpers.instruments.costs import activations, states
    from helpers.models import GPT

    shape = {"width": 1024, "layers": 24, "heads": 16, "vocabulary": 50257, "length": 512}
    batch, found = 4, {}
    for checkpointing in (False, True):
        torch.cuda.empty_cache()
        model = GPT(**shape, checkpointing=checkpointing).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.randint(shape["vocabulary"], (batch, shape["length"] + 1), device="cuda")
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        total = sum(parameter.numel() for parameter in model.parameters())
        held = states(total, 1, "DDP")
        kept = activations(**shape, batch=batch, checkpointing=checkpointing)
        kept += 2 * 4 * batch * shape["length"] * shape["vocabulary"]  # two gradients as large as the scores
        most = held["parameters"] + held["optimizer"] + max(held["gradients"], kept)
        found["checkpointing" if checkpointing else "all kept"] = {
            "counted_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
            "predicted_gib": round(most / 2**30, 2)}
        del model, optimizer, loss
    return found
