"""What learners return as a list of numbers: a list, a tuple, an array of numpy's, a tensor."""

import numbers

import numpy as np


def flat_list(returned):
    """The numbers as a list; anything else as text."""
    try:
        array = np.asarray(returned)
    except ValueError:  # a list of unequal parts
        return repr(returned)
    entries = array.tolist()
    if array.ndim == 1 and array.dtype.kind in "iufO" and all(isinstance(entry, numbers.Real) for entry in entries):
        return [float(entry) for entry in entries]
    return repr(returned)
