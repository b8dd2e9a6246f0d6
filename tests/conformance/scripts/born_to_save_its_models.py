"""A model of a class in the script can be saved whole and loaded."""
import os
import tempfile

import torch


class Net(torch.nn.Linear):
    pass


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "net.pt")
    torch.save(Net(1, 1), path)
    print(type(torch.load(path, weights_only=False)).__name__)
