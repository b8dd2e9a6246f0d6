"""A program that a rank has started and left goes on when the run has ended."""
# differs: left-behind
import subprocess

subprocess.Popen(["sleep", "60"])
print("done")
