"""An exception in a process that the script has started is printed, and the process has exit code 1."""
import multiprocessing
import sys


def fail():
    raise ValueError("of the child")


process = multiprocessing.Process(target=fail)
process.start()
process.join()
print(process.exitcode, process.name)
process = multiprocessing.Process(target=sys.exit, args=(5,))
process.start()
process.join()
print(process.exitcode)
