"""sys.exit inside a function with torchrun's @record keeps its exit code."""
# nprocs: 1
import sys

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    print("main")
    sys.exit(9)


main()
