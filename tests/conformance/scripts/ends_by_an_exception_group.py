"""A group of exceptions is shown with its members."""
# nprocs: 1
raise ExceptionGroup("two problems", [ValueError("one"), TypeError("other")])  # noqa: F821
