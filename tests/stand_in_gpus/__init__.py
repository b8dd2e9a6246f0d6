"""GPUs that are not there: what a machine with N of them would say and do, on the CPU, for tests.

    PATH=tests/stand_in_gpus:$PATH PYTHONPATH=tests/stand_in_gpus COURSE_STAND_IN_GPUS=8 python …

switches them on for a process and all that it starts: `nvidia-smi` answers what helpers.hardware asks, `sitecustomize`
has `cuda_on_cpu` replace torch.cuda as soon as torch is imported. What they can and cannot show: cuda_on_cpu.py.
"""

import os
from pathlib import Path


def environment(gpus):
    """The environment variables, all of them, of a process that is to see `gpus` stand-in GPUs."""
    here = str(Path(__file__).parent)
    paths = {name: os.pathsep.join(filter(None, [here, os.environ.get(name)])) for name in ("PATH", "PYTHONPATH")}
    return {**os.environ, **paths, "COURSE_STAND_IN_GPUS": str(gpus)}
