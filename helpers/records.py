"""The JSON in data/records/: what published tables say, and what benchmarks of this course have measured.

What experiments on GPUs have found lies beside it: helpers/experiments.py.
"""

import json
import os


class DataError(RuntimeError):
    """Data is missing or damaged, or cannot be fetched or stored. The message says what to do about it."""


def stored(path):
    """What a record's JSON holds. Raises DataError: it is missing, or no JSON."""
    return shipped(path, json.loads)


def shipped(path, parse):
    """What `parse` makes of the bytes of a file that ships.

    Raises DataError: the file cannot be read, or `parse` raises a ValueError because it is damaged.
    """
    try:
        return parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path.name}: {error}. To restore it: git checkout -- data/{path.parent.name}, "
                        "or, without git, install the course again.") from None


def store(path, content):
    """Write a record's JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    part.replace(path)
