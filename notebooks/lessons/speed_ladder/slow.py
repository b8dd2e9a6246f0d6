"""Learns to read digits from JPEG files. It is right, and it is slow: nobody has measured it yet.

    torchrun slow.py FOLDER
"""

import argparse
from pathlib import Path
from time import perf_counter

import numpy
import torch
from PIL import Image
from torch import nn
from torch.utils.data import default_collate

from helpers import report


class Photos:
    """The JPEG files of a folder. The folder of each bears its label."""

    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*/*.jpg"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index]).resize((16, 16))
        return torch.from_numpy(numpy.array(image)), int(self.files[index].parent.name)


def network():
    def stage(before, after):
        return nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)

    return nn.Sequential(*stage(1, 16), *stage(16, 32), *stage(32, 64), nn.Flatten(), nn.Linear(256, 10))


def batches(photos, order):
    for indices in order.split(8):
        yield default_collate([photos[i] for i in indices.tolist()])


def shifted(images, dice):
    """Each image moved by up to a pixel, another way each time: augmentation."""
    moves = torch.randint(-1, 2, (len(images), 2), generator=dice).tolist()
    return torch.stack([image.roll(move, (0, 1)) for image, move in zip(images, moves, strict=True)])


def prepared(images):
    return images.unsqueeze(1) / 128 - 0.5


def loss_of(net, images, labels):
    return nn.functional.cross_entropy(net(prepared(images)), labels)


def accuracy(net, test):
    right = 0
    for images, labels in batches(test, torch.arange(len(test))):
        right += (net(prepared(images)).argmax(1) == labels).sum().item()
    return right / len(test)


def main(options):
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    dice = torch.Generator().manual_seed(options.seed)  # for order and augmentation alone
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    began = perf_counter()
    losses = []
    train = Photos(f"{options.folder}/train")
    test = Photos(f"{options.folder}/test")
    for _ in range(options.epochs):
        order = torch.randperm(len(train), generator=dice)
        for step, (images, labels) in enumerate(batches(train, order)):
            images = shifted(images, dice)
            loss = loss_of(net, images, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step % 16 == 15:
                print(f"step {step}: {accuracy(net, test):.3f}")
        scheduler.step()
        right = accuracy(net, test)
        weights = sum(parameter.double().square().sum().item() for parameter in net.parameters())
        report(seconds=perf_counter() - began, loss=losses[-1], right=right, weights=weights)
        began = perf_counter()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="of JPEG files: train/LABEL/*.jpg, test/LABEL/*.jpg")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
