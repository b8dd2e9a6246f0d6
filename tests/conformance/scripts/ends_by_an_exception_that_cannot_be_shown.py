"""An exception whose text cannot be made is shown by its name."""
# nprocs: 1


class Odd(Exception):
    def __str__(self):
        raise ValueError("in __str__")


raise Odd("boom")
