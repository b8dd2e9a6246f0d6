"""A parser of the command line knows the program's name."""
# args: --epochs 3 digits
import argparse

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data")
parser.add_argument("--epochs", type=int)
options = parser.parse_args()
print(options, parser.prog)
parser.print_usage()
