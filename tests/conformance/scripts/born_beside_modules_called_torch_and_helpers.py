"""What lies beside the script hides what else has its name: a torch.py, a beginner's accident; a package helpers."""
import torch

from helpers.launcher import NAME
from helpers.reporting import report

print(hasattr(torch, "tensor"), torch.__file__.endswith("run/torch.py"))
report(NAME)
