"""What the lessons share: start ranks from a notebook, see this machine, load small data, check exercises.

Importing this package is cheap: nothing below loads before it is asked for, nor torch before a part needs it.
"""

from importlib import import_module

from helpers import missing_names

missing_names.install()

_HOME = {
    "launch": "helpers.launcher",
    "RankError": "helpers.launcher",
    "copy_script": "helpers.scripts",
    "made_for": "helpers.first_cell",
    "report": "helpers.reporting",
}

__all__ = ["RankError", "copy_script", "launch", "made_for", "report"]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'helpers' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__():
    return sorted([*globals(), *_HOME])
