"""Print where launch leaves the record of torchrun: `python -m tests.conformance.compare [names…]`.

`--spawn` compares launch without a fork server, `--torchrun` asks torchrun anew. Names may be parts of names.
"""

import json
import sys
import time

from tests.conformance import outcome, script
from tests.conformance.record import LAUNCH, TORCHRUN, recorded


def differences(expected, got):
    """One line for each thing that is not the same."""
    for part in ("failed", "exceptions", "lines", "files", "processes", "memory"):
        one, other = expected.get(part, {}), got.get(part, {})
        if isinstance(one, list) or isinstance(other, list):
            one, other = {"": one or []}, {"": other or []}
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                yield (f"  {part} {key}\n    record  {json.dumps(one.get(key), ensure_ascii=False)}"
                       f"\n    now     {json.dumps(other.get(key), ensure_ascii=False)}")


def main(words):
    """Compare all scripts, or those whose names contain one of `words`."""
    options, words = [word for word in words if word[0] == "-"], [word for word in words if word[0] != "-"]
    names = [name for name in script.NAMES if not words or any(word in name for word in words)]
    for name in names:
        if script.read(name).lacks:
            print(f"{name} is left out: there is no {script.read(name).lacks} here")
    names = [name for name in names if not script.read(name).lacks]
    differ, began, spawned = [], time.monotonic(), outcome.by_spawn(names) if "--spawn" in options else {}
    for name in names:
        one, key = script.read(name), script.read(name).differs
        expected = recorded(LAUNCH if key and "--torchrun" not in options else TORCHRUN).get(name)
        start = time.monotonic()
        try:
            got = spawned.get(name) or outcome.of(name, "torchrun" if "--torchrun" in options else "launch")
        except Exception as error:  # a launcher that is broken: say so, and go on
            got = {"exceptions": {"the suite": [f"{type(error).__name__}: {error}"]}}
        found = list(differences(expected or {}, got)) if expected is not None else ["  nothing is recorded"]
        if found:
            differ.append(name)
            print(f"{name} ({time.monotonic() - start:.1f} s): {one.says}", f"[{key}]" if key else "")
            print("\n".join(found), flush=True)
    print(f"{len(names) - len(differ)} of {len(names)} are as recorded ({time.monotonic() - began:.0f} s)")
    return len(differ)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
