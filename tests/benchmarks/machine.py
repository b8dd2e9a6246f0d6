"""Which machine a benchmark ran on, for its record: no host or user name, no path."""

import datetime
import importlib.metadata
import os

from helpers.hardware import hardware


def this_machine():
    """Call it before anything is measured: the load that it notes is that of others."""
    return {"cpu": hardware.cpu, "cores": hardware.cores, "load_before": round(os.getloadavg()[0], 2),
            "torch": importlib.metadata.version("torch"), "date": datetime.date.today().isoformat()}
