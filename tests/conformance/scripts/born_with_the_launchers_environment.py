"""A variable that was set before the launch is seen by a rank, and by what a rank starts."""
import os
import subprocess
import sys

print(os.environ["COURSE_TEST_MARK"].startswith("conformance"), os.environ["KINETO_LOG_LEVEL"])
code = "import os; print('child of rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
subprocess.run([sys.executable, "-c", code], check=True)
subprocess.run("echo shell of rank $LOCAL_RANK", shell=True, check=True)
