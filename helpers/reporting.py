"""`report(loss=0.3, step=7)`: numbers on their way from a rank to the notebook that launched it."""

import json
import os

#: In each rank's environment, by `launch`: its run's folder, and the file for its numbers; none under torchrun.
RUN_FOLDER = "HELPERS_RUN_FOLDER"
REPORT_FILE = "HELPERS_REPORT_FILE"

_descriptors = {}  # by path: opened at the first report of a process


def report(**numbers):
    """Send numbers to the notebook, one row a call; under plain `torchrun`, print them as one line.

    Values are numbers, strings, None, or lists and dicts of them; a tensor or array with one element is sent
    as its number, a longer one as a list.

    Raises TypeError: a value is none of these (the message names it), or nothing was given.
    """
    if not numbers:
        raise TypeError("report() needs at least one number, for example report(loss=0.3)")
    row = {name: _plain(name, value) for name, value in numbers.items()}
    path = os.environ.get(REPORT_FILE)
    if path is None:
        words = [f"{name}={_short(value)}" for name, value in row.items()]
        if "RANK" in os.environ:
            words.insert(0, f"[rank {os.environ['RANK']}]")
        print(*words, flush=True)
        return
    if path not in _descriptors:
        _descriptors[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # One write per row: a rank that is killed leaves whole rows behind, never half of one that looks whole.
    os.write(_descriptors[path], json.dumps(row).encode() + b"\n")


def _plain(name, value):
    if hasattr(value, "tolist"):  # tensors and numpy arrays, without importing either
        value = value.tolist()
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], int | float):
        value = value[0]
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise TypeError(f"report({name}=…): a {type(value).__name__} cannot be sent; send numbers, text "
                        f"or lists of them, for example report({name}=float(x))") from None
    return value


def _short(value):
    if isinstance(value, list) and len(value) > 20:  # a model's weights, say: nobody reads them in a terminal
        return f"[{len(value)} values]"
    return f"{value:.6g}" if isinstance(value, float) else value
