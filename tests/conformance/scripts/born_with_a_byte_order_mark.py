"""A byte order mark before the first line is no part of the program."""
print(__doc__.split()[0], "ä")
