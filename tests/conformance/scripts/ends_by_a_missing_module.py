"""A module that is not there ends the rank."""
# nprocs: 1
import no_such_module  # noqa: F401
