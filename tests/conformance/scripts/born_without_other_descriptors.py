"""What a rank starts inherits no file but the three standard ones."""
import subprocess
import sys

code = "import os; print([number for number in range(3, 200) if os.path.exists(f'/proc/self/fd/{number}')])"
subprocess.run([sys.executable, "-c", code], close_fds=False, check=True)
