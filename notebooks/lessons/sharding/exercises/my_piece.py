"""A checkpoint that four ranks have written, cut anew for another number of ranks."""

import sys
from pathlib import Path

import torch

from helpers.exercises.feedback import kind_of
from helpers.exercises.group import InGroup
from helpers.exercises.in_rank import scratch
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import same


class MyPiece(InGroup):
    title = "Saved on four, resumed on N"
    task = ("Four ranks have saved a flat tensor of `total` numbers. It was padded with zeros to a multiple "
            "of four, and rank *i* wrote its quarter to `files[i]` with `torch.save`. Now there are N ranks. "
            "Return this rank's piece of the same tensor for N ranks: pad the `total` numbers with zeros to "
            "a multiple of **N**, cut them into N equal pieces, and take the piece with this rank's number. "
            "Load only files that hold some of this piece's numbers, because the whole may not fit into "
            "memory.")
    hints = (
        "This rank's piece begins at `rank * size` and ends at `(rank + 1) * size`, with `size = -(-total // "
        "N)`. But the tensor ends at `total`, and zeros follow.",
        "File *i* holds the numbers from `i * saved` to `(i + 1) * saved`, with `saved = -(-total // 4)`. "
        "Load it only if this overlaps with your piece before `total`.",
    )
    explanation = ("For each file, the part that lies in this rank's piece and before `total` is copied to "
                   "where it belongs. Files without such a part are not opened.")
    why = ("a distributed checkpoint does this for every tensor of a model. For this its `.metadata` says "
           "which file holds which part. If you put the whole together first, you need a machine that can "
           "hold it.")

    world_sizes = (2, 3, 5)
    cases = {"16 numbers": (16, "float32"), "13 numbers": (13, "float64"), "9 numbers": (9, "float32")}

    def answer(files, total):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        size, saved = -(-total // n), -(-total // len(files))                                   #: sizes
        piece = None                                                                            #: none
        for index, file in enumerate(files):
            start, end = max(index * saved, rank * size), min((index + 1) * saved, (rank + 1) * size, total)
            if start < end:
                part = torch.load(file)[start - index * saved:end - index * saved]
                piece = part.new_zeros(size) if piece is None else piece                        #: zeros
                piece[start - rank * size:end - rank * size] = part
        return torch.zeros(size) if piece is None else piece                                    #: give

    def observe(my_piece, case):
        total, dtype = case
        flat = torch.zeros(-(-total // 4) * 4, dtype=getattr(torch, dtype))
        flat[:total] = torch.arange(1, total + 1)
        opened = set()
        with scratch() as folder:
            files = [str(Path(folder, f"rank{rank}.pt")) for rank in range(4)]
            for file, quarter in zip(files, flat.chunk(4), strict=True):
                torch.save(quarter.clone(), file)
            # Nothing can take an audit hook away again; after this case it only adds to an old set.
            sys.addaudithook(lambda event, args: event == "open" and opened.add(str(args[0])))
            piece = my_piece(files, total)

        if not isinstance(piece, torch.Tensor):
            return {"returned": kind_of(piece)}
        dtype_of_piece = "of no file"
        if piece.any():  # else it is all padding, and no file says of which dtype
            dtype_of_piece = str(piece.dtype)
        return {
            "returned": "a tensor",
            "piece": piece.tolist(),
            "dtype": dtype_of_piece,
            "files loaded": ", ".join(Path(file).stem for file in files if file in opened),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    as_loaded = "make the piece in the dtype of what is loaded"
    which_files = "which files hold numbers of this rank's piece? The zeros of the padding need no file"

    a_tensor = "`return` a tensor. A rank whose piece is all padding returns one, too: of zeros"

    rules = (
        same("returned", a_tensor),
        same("piece", "where does this rank's piece begin and end, and where does the tensor end? (Its "
                      "numbers are 1, 2, 3 …)"),
        same("dtype", as_loaded),
        same("files loaded", which_files),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("who has the last numbers? Round up", sizes="size, saved = total // n, -(-total // len(files))"),
        mistake("how long is a file? It is padded, too", sizes="size, saved = -(-total // n), total // len(files)"),
        mistake(which_files, none="parts = [torch.load(file) for file in files]\npiece = None"),
        mistake(as_loaded, zeros="piece = torch.zeros(size) if piece is None else piece"),
        mistake(a_tensor, give="return piece"),
    )


my_piece = MyPiece()
