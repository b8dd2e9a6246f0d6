"""What a script takes from the future holds in it, and type hints of its own classes resolve."""
from __future__ import annotations

import typing
from dataclasses import dataclass, fields


@dataclass
class Node:
    value: int
    next: Node | None = None


print(typing.get_type_hints(Node), [field.type for field in fields(Node)])
print(__annotations__ if "__annotations__" in globals() else "no annotations", annotations.compiler_flag > 0)
