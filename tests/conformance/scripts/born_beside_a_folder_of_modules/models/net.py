from . import parts

NAME = f"net made of {parts.NAME}"
