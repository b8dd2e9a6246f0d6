"""Ask torchrun, and keep what it does: `python -m tests.conformance.record [--launch] [names…]`.

With `--launch`, ask launch about the scripts in which it has to differ, and keep that in launch.json.
"""

import json
import platform
import sys

from tests.conformance import outcome, script

TORCHRUN = script.HERE / "torchrun.json"
LAUNCH = script.HERE / "launch.json"


def recorded(path):
    """Outcomes by the name of the script."""
    return json.loads(path.read_text())["scripts"] if path.exists() else {}


def record(path, names, engine):
    """Add the outcomes of these scripts to the record, and drop those of scripts that are gone."""
    import torch

    for name in names:
        try:
            got = outcome.of(name, engine)
        except Exception as error:
            print(name, f"NOT RECORDED: {error}", flush=True)
            continue
        kept = {**recorded(path), name: got}
        print(name, json.dumps(got, ensure_ascii=False), flush=True)
        whole = {"torch": torch.__version__.partition("+")[0], "python": platform.python_version(),
                 "scripts": {name: kept[name] for name in sorted(kept) if _belongs(name, path)}}
        path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def _belongs(name, path):
    return name in script.NAMES and (path == TORCHRUN or bool(script.read(name).differs))


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--launch"]
    if "--launch" in sys.argv:
        record(LAUNCH, names or [name for name in script.NAMES if script.read(name).differs], "launch")
    else:
        record(TORCHRUN, names or script.NAMES, "torchrun")
