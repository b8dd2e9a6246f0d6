"""The JSON in data/records/: what published tables say, and what benchmarks of this course have measured.

What experiments on GPUs have found lies beside it: helpers/experiments.py.
"""

import hashlib
import json
import os


class DataError(RuntimeError):
    """Data is missing or damaged, or cannot be fetched or stored. The message says what to do about it."""


def stored(path):
    """What a record's JSON holds. Raises DataError."""
    return json.loads(shipped(path))


def shipped(path):
    """The bytes of a file that ships, once they agree with the SHA256SUMS beside it. Raises DataError."""
    cure = f"To restore it: git checkout -- data/{path.parent.name}, or, without git, install the course again."
    try:
        content, sums = path.read_bytes(), _sums(path.parent)
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path.name}: {error}. {cure}") from None
    if hashlib.sha256(content).hexdigest() != sums.get(path.name):
        raise DataError(f"{path} is damaged: it differs from its checksum in SHA256SUMS. {cure}")
    return content


def store(path, content):
    """Write a record's JSON, whole or not at all, and its checksum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    sums = (_sums(path.parent) if (path.parent / "SHA256SUMS").exists() else {}) | {
        path.name: hashlib.sha256(text.encode()).hexdigest()}
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    for target, words in ((path, text), (path.parent / "SHA256SUMS", lines)):
        part = target.with_suffix(f".{os.getpid()}")
        part.write_bytes(words.encode())
        part.replace(target)


def _sums(folder):
    """{name: checksum} of SHA256SUMS in a folder. Raises OSError or ValueError if it cannot be read."""
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return dict(line.split()[::-1] for line in lines)
