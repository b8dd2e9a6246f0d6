"""The script's own helpers.py is what it imports."""
import helpers
from helpers import launch

print(helpers.WHOSE, launch(), helpers.__file__.endswith("run/helpers.py"))
