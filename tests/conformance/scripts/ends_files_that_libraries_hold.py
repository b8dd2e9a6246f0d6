"""A log that functions write which the script has put into libraries is complete: print, warnings, json, torch."""
import builtins
import json
import os
import tempfile
import warnings

import torch

log = open(f"log-{os.environ['RANK']}", "w")
scratch = tempfile.TemporaryDirectory(prefix="scratch-", dir=".")
save = torch.save


def save_and_log(*args, **options):
    log.write("saved\n")
    save(*args, **options)


builtins.print = lambda *words: log.write(f"{' '.join(words)}\n")
warnings.showwarning = lambda message, *_, **__: log.write(f"{message}\n")
json.dumps, torch.save = (lambda row: log.write(f"{row}\n")), save_and_log
print("printed", json.dumps("to json") and "after it")
warnings.warn("a warning")  # noqa: B028
torch.save(torch.ones(2), f"{scratch.name}/tensor.pt")
