"""A training configured as with hydra, `lr=0.1 +model.width=8`: config and log stand in a folder of the run's own."""
# args: lr=0.1 +model.width=8
import ast
import functools
import inspect
import json
import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def configured(**config):
    """Call the function with its configuration, in a folder of the run's own."""
    def decorate(function):
        @functools.wraps(function)
        def decorated():
            for word in sys.argv[1:]:
                name, value = word.split("=")
                *path, last = name.lstrip("+").split(".")
                if name[0] != "+" and not path and last not in config:
                    sys.exit(f"Could not override '{last}'.")
                functools.reduce(lambda place, key: place.setdefault(key, {}), path, config)[last] = \
                    ast.literal_eval(value)
            folder = Path("outputs", Path(inspect.getfile(function)).stem, ",".join(sys.argv[1:]))
            (folder / ".hydra").mkdir(parents=True, exist_ok=True)
            os.chdir(folder)
            Path(f".hydra/config-{os.environ['RANK']}.json").write_text(json.dumps(config))
            logging.basicConfig(level=logging.INFO, format="[%(name)s][%(levelname)s] %(message)s", handlers=[
                logging.FileHandler(f"train-{os.environ['RANK']}.log"), logging.StreamHandler(sys.stdout)])
            return function(config)
        return decorated
    return decorate


@configured(lr=1.0, epochs=2)
def main(config):
    """Train a model of the width that was asked for."""
    log = logging.getLogger(main.__name__)
    log.info("in %s", Path.cwd().name)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(config["model"]["width"], 1))
    optimizer = torch.optim.SGD(model.parameters(), config["lr"])
    for epoch in range(config["epochs"]):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
        log.info("epoch %d, %d weights, lr %g", epoch, model.module.weight.numel(), config["lr"])
    torch.save(model.module.state_dict(), f"model-{dist.get_rank()}.pt")


if __name__ == "__main__":
    main()
