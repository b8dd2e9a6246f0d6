"""A file that the script has not closed holds all that was written."""
import csv
import os

log = open(f"losses-{os.environ['RANK']}.csv", "w")
writer = csv.writer(log)
for step in range(3):
    writer.writerow([step, 1 / (step + 1)])
