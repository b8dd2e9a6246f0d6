"""Objects of a script's classes can be pickled and read back."""
import copy
import enum
import pickle
from collections import namedtuple
from dataclasses import dataclass, replace

Pair = namedtuple("Pair", "a b")


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Settings:
    lr: float = 0.1
    colour: Colour = Colour.RED


copied = replace(copy.deepcopy(Settings()), lr=1)
for thing in (Pair(1, 2), Colour.RED, Settings(), Settings, copied):
    packed = pickle.dumps(thing)
    print(pickle.loads(packed) == thing, type(thing).__module__, b"__main__" in packed)
