"""The standard streams are ordinary ones, and no terminal."""
import sys

for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(type(stream).__name__, stream.name, stream.mode, stream.fileno(), stream.isatty(), stream.newlines)
print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__)
print("umlauts: äöü, a snowman: ☃, an emoji: 🙂")
