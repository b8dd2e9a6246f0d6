"""Train on the digits with nn.DataParallel."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from helpers import report
from helpers.data import Digits

device = "cuda" if torch.cuda.is_available() else "cpu"
images, labels = Digits().tensors()
data = TensorDataset(images[:1024], labels[:1024])
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).to(device)
model = nn.DataParallel(model)
loader = DataLoader(data, batch_size=64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(2):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
report(weights=model.module[1].weight.tolist())  # or save model.module.state_dict()
