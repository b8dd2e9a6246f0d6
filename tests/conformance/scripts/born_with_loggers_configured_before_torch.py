"""A logging set up before torch is imported stays as it is, and torch's loggers follow it."""
# differs: already-imported
import logging
import sys

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
logging.getLogger("torch").setLevel(logging.ERROR)
import torch  # noqa: E402

for name in ("torch", "torch.distributed", "torch._dynamo"):
    logger = logging.getLogger(name)
    print(name, logger.level, logger.getEffectiveLevel(), len(logger.handlers), logger.propagate)
logging.getLogger("torch.mine").warning("not shown")
logging.getLogger("mine").info("%s", torch.tensor(1))
