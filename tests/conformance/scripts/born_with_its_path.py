"""The search path, after the script's folder, is the one of a fresh interpreter."""
import subprocess
import sys

code = "import sys; print(sys.path[1:])"
fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
print(str(sys.path[1:]) == fresh.stdout.strip())
print([name for name in ("pytest", "IPython", "ipykernel", "tests") if name in sys.modules])
