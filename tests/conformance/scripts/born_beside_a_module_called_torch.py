"""A torch.py beside the script hides torch: a beginner's accident."""
import torch

print(hasattr(torch, "tensor"), torch.__file__.endswith("run/torch.py"))
