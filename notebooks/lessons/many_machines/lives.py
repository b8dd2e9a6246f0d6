"""A script that needs nobody: ten times a second it prints since when it runs.

    torchrun … lives.py
"""

import json
import time

began = time.time()
while True:
    print(json.dumps({"began": began, "time": time.time()}))
    time.sleep(0.1)
