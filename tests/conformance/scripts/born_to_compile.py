"""A function of the script can be compiled."""
# nprocs: 1
import torch


@torch.compile(backend="eager")
def double(x):
    return 2 * x


print(double(torch.ones(2)).tolist(), torch.compiler.is_compiling())
