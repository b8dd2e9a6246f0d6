"""The accuracy on a test set that the ranks share: every sample counts once, and no rank reads them all."""

import torch

from helpers.exercises.feedback import kind_of
from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import holds, nothing, same


def is_known(index):
    """Whether the model knows this sample; it knows sample 0, which a DistributedSampler uses for padding."""
    return index * index % 7 < 3


class Samples:
    """A dataset that counts, in memory that worker processes share, how often each sample is read."""

    def __init__(self, size, dtype):
        self.size = size
        self.dtype = getattr(torch, dtype)
        self.reads = torch.zeros(size, dtype=torch.int32).share_memory_()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.reads[index] += 1  # raises an IndexError behind the end
        label = index % 3
        best = label if is_known(index) else (label + 1) % 3
        scores = torch.full((3,), -2, dtype=self.dtype)
        scores[best] = -1
        return scores, label


class ExactAccuracy(InGroup):
    title = "The exact accuracy, by all ranks together"
    task = ("Return the accuracy of `model` on the whole `dataset`: a number from 0 to 1, the same in every "
            "rank. `dataset[i]` is an image and its label. The model returns one score per class and is in "
            "eval mode. Each rank reads only its own share, at most an N-th of the samples, rounded up. "
            "Every sample counts exactly once, also if there are fewer samples than ranks.")
    hints = (
        "`range(rank, len(dataset), world_size)` repeats nothing. `torch.utils.data.Subset` takes it.",
        "Do not average averages. Count right answers and samples, add up both over all ranks with one "
        "`all_reduce`, and divide at the end. A rank without samples adds two zeros, but it calls "
        "`all_reduce`, too.",
    )
    explanation = "There are two sums and one division. A rank without samples calls `all_reduce`, too."
    why = ("A DistributedSampler repeats samples, so that all ranks train equally many steps. In a test some "
           "samples then count twice, and the accuracy depends on the number of GPUs.")

    world_sizes = (2, 4)
    # The size of the dataset, and the dtype of its images.
    cases = {
        "11 samples": (11, "float32"),
        "3 samples": (3, "float32"),
        "1001 samples in bfloat16": (1001, "bfloat16"),
    }

    def answer(model, dataset):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Subset

        mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
        counts = torch.zeros(2)                                             #: counts
        with torch.no_grad():
            for images, labels in DataLoader(mine, batch_size=64):          #: load
                right = model(images).argmax(1) == labels                   #: right
                counts += torch.tensor([right.sum(), len(labels)])
        dist.all_reduce(counts)                                             #: reduce
        return (counts[0] / counts[1]).item()                               #: divide

    def observe(exact_accuracy, case):
        dataset = Samples(*case)
        model = torch.nn.Identity().eval()  # an image of this dataset holds its scores
        in_train_mode = []
        model.register_forward_pre_hook(lambda module, _: in_train_mode.append(module.training))

        accuracy = exact_accuracy(model, dataset)

        try:
            accuracy = float(accuracy)
        except (TypeError, ValueError, RuntimeError):
            accuracy = kind_of(accuracy)
        return {
            "calls in train mode": sum(in_train_mode),
            "reads": dataset.reads.tolist(),
            "accuracy": accuracy,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    def more_than_its_share(mine, wanted, case):
        size, _ = case
        most = -(-size // len(mine))
        for rank, observed in enumerate(mine):
            read = size - observed["reads"].count(0)
            if read > most:
                return f"rank {rank} read {read} of the {size} samples", f"at most {most}: its own share"

    def read_by_nobody(mine, wanted, case):
        by_rank = [observed["reads"] for observed in mine]
        for index, reads in enumerate(zip(*by_rank, strict=True)):
            if not any(reads):
                return f"sample {index} was read by no rank", "every sample counts once"

    rules = (
        nothing("calls in train mode", "`model.train()`: leave the model as it is", "eval mode, as it was"),
        holds(more_than_its_share, "which indices this rank looks at"),
        holds(read_by_nobody, "the remainder, where the number of ranks does not divide the samples, or a batch's size "
                              "a share; and do all ranks share out the same order?"),
        same("accuracy", "what is added up over the ranks, in which dtype, and what is divided by what? Is it rounded? "
                         "Does a sampler repeat samples? Does every rank return one number?", within=1e-6),
    )

    # ------------------------------------------------------------------------------------ what people write

    repeats = "`DistributedSampler` repeats samples, so that all ranks get equally many: some count twice"

    mistakes = (
        mistake(repeats, load="for images, labels in DataLoader(\n"
                              "        dataset, sampler=torch.utils.data.DistributedSampler(dataset)):"),
        mistake(repeats, load="for images, labels in DataLoader(\n"
                              "        dataset, sampler=torch.utils.data.DistributedSampler(dataset, shuffle=False)):"),
        mistake("that is the accuracy of a rank's own share: add up over all", reduce=""),
        mistake("`reduce` gives the sums to one rank only", reduce="dist.reduce(counts, 0)"),
        mistake("every rank returns it",
                divide="if dist.get_rank() == 0:\n"
                       "    return (counts[0] / counts[1]).item()"),
        mistake("that is the mean of the ranks' own accuracies: are their shares equal?",
                reduce="own = counts[0] / counts[1].clamp(min=1)\n"
                       "dist.all_reduce(own)",
                divide="return (own / dist.get_world_size()).item()"),
        mistake("that is percent", divide="return (100 * counts[0] / counts[1]).item()"),
        mistake("the dtype of the counts: 256 + 1 is 256 in it",
                counts="counts = torch.zeros(2, dtype=torch.bfloat16)"),
        mistake("not one is right: is the class compared with the label (`max(1)` gives scores first)? Or does a "
                "whole number, or `//`, cut off the result?", right="right = model(images).max(1)[0] == labels"),
        stop("had returned", "does every rank come to the collective, one without samples, too?",
             counts="counts = torch.zeros(2)\n"
                    "if dist.get_rank() >= len(dataset):\n"
                    "    return 0.0"),
    )


exact_accuracy = ExactAccuracy()
