"""A script that cannot be compiled is not started under launch, and fails in each rank under torchrun."""
# nprocs: 1
# differs: refused-before
return 1  # noqa: F706
