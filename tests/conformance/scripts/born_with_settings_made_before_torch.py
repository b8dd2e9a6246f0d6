"""What a script sets before it imports torch has its effect: variables, levels of torch's loggers, warning filters."""
# differs: already-imported
import logging
import os
import sys
import warnings

print("filters of Python alone:", len(warnings.filters) == 5)
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
logging.getLogger("torch").setLevel(logging.ERROR)
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
os.environ["OMP_NUM_THREADS"] = "2"
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

print(dist.get_debug_level(), torch.get_num_threads())
for name in ("torch", "torch.distributed", "torch._dynamo"):
    logger = logging.getLogger(name)
    print(name, logger.level, logger.getEffectiveLevel(), len(logger.handlers), logger.propagate)
logging.getLogger("torch.mine").warning("not shown")
logging.getLogger("mine").info("%s", torch.tensor(1))
