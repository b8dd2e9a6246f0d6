"""A rank that reads its stdin finds nothing."""
import sys

print(repr(sys.stdin.read()))
try:
    input("a question: ")
except EOFError as error:
    print("EOFError", error)
