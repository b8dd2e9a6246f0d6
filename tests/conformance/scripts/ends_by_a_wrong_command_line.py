"""argparse says what is wrong with the command line, and its exit code is 2."""
# nprocs: 1
# args: --learning 0.1
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args()
