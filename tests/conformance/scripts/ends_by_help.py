"""--help is success."""
# args: --help
import argparse

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--lr", type=float, default=0.1, help="the learning rate")
parser.parse_args()
print("not reached")
