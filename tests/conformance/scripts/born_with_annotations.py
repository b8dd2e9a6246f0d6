"""A script's own variables have their annotations."""
import sys

steps: int = 3
if steps > 2:
    name: str = "here"
print(sys.modules["__main__"].__annotations__)
