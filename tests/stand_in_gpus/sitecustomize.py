"""Python runs this first where this folder is in PYTHONPATH: once torch is imported, GPUs stand in (`cuda_on_cpu`)."""

import importlib.util
import os
import sys


class _AfterTorch:
    """A finder that lets torch be found as ever, and has something done when it has been imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(_AfterTorch)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module

        def execute_and_install(module):
            execute(module)
            import cuda_on_cpu

            cuda_on_cpu.install(int(os.environ["COURSE_STAND_IN_GPUS"]))

        spec.loader.exec_module = execute_and_install
        return spec


if int(os.environ.get("COURSE_STAND_IN_GPUS") or 0):
    sys.meta_path.insert(0, _AfterTorch)
