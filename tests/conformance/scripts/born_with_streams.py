"""The standard streams are ordinary ones, no terminal; stdin is at its end; what a rank starts inherits no other."""
import subprocess
import sys

for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(type(stream).__name__, stream.name, stream.mode, stream.fileno(), stream.isatty(), stream.newlines)
print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__)
print("umlauts: äöü, a snowman: ☃, an emoji: 🙂")
print(repr(sys.stdin.read()))
try:
    input("a question: ")
except EOFError as error:
    print("EOFError", error)
code = "import os; print([number for number in range(3, 200) if os.path.exists(f'/proc/self/fd/{number}')])"
subprocess.run([sys.executable, "-c", code], close_fds=False, check=True)
