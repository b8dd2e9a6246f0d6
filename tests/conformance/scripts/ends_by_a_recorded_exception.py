"""An exception of a function with torchrun's @record is shown like any other."""
# nprocs: 1
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    raise ValueError("boom")


main()
