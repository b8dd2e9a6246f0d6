"""Run the course's tests under another torch, its notebooks included, and list what changed.

    python tools/try_torch.py 2.15.0                         in a new environment, in a temporary folder
    python tools/try_torch.py 2.15.0 --python PYTHON         in an environment that is there
    python tools/try_torch.py 2.15.0 notebooks/05*.ipynb     these tests; pytest's own options may follow

It prints which packages are others than here. Then pytest shows of each cell that fails what is stored and
what came out, and at its end the list of all tests and cells that failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def install(version):
    """A new environment with the course, its pinned packages, and this torch; return its Python."""
    pinned = [line for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
              if line and not line.startswith(("#", "-e", "torch==", "torchvision=="))]
    folder = Path(tempfile.mkdtemp(prefix=f"torch-{version}-"))
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [python, "-m", "pip", "install", f"torch=={version}", "torchvision", *pinned, "-e", ROOT]
    subprocess.run(pip, check=True)
    return python


def packages(python):
    """{name: version} of what is installed beside `python`."""
    pip = [python, "-m", "pip", "list", "--format=json"]
    listed = subprocess.check_output(pip, stderr=subprocess.DEVNULL)
    return {one["name"].lower(): one["version"] for one in json.loads(listed)}


def main():
    parser = argparse.ArgumentParser(description="Run the course's tests under another torch.")
    parser.add_argument("version", help="such as 2.15.0")
    parser.add_argument("--python", help="the Python of an environment that has this torch")
    options, tests = parser.parse_known_args()
    python = options.python or install(options.version)
    here, there = packages(sys.executable), packages(python)
    if there.get("torch", "none").partition("+")[0] != options.version:
        sys.exit(f"{python} has torch {there.get('torch', 'none')}, not {options.version}")
    print(f"{python}; packages, here → there:")
    for name in sorted(here | there):
        if here.get(name) != there.get(name):
            print(f"  {name} {here.get(name, 'none')} → {there.get(name, 'none')}")
    print(flush=True)
    return subprocess.run([python, "-m", "pytest", "-q", *tests], cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode


if __name__ == "__main__":
    sys.exit(main())
