"""An exception's class is shown by its full name, if it is not one of the script's."""
# nprocs: 1
import json


class Outer:
    class Problem(json.JSONDecodeError):
        pass


raise Outer.Problem("no json", "x", 0)
