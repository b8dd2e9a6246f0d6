"""An exception is shown with its cause."""
# nprocs: 1
try:
    try:
        {}["a"]
    except KeyError:
        [][1]
except IndexError as error:
    raise RuntimeError("no data") from error
