"""An object that torch still holds, by a function that was put into it, writes its file in __del__."""
# differs: held-by-a-library
import json
import os

import torch


class Report:
    def __init__(self):
        self.file, self.rows = open(f"report-{os.environ['RANK']}.json", "w"), []

    def __del__(self):
        json.dump(self.rows, self.file)


report, save = Report(), torch.save
torch.save = lambda what, path: (save(what, path), report.rows.append(path))
torch.save(torch.ones(2), f"tensor-{os.environ['RANK']}.pt")
