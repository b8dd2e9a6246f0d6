"""A child that the script has forked runs the rest of the script as well, its exit functions too."""
import atexit
import os

atexit.register(lambda: print("exit function of the", who))
child = os.fork()
who = "parent" if child else "child"
if child:
    print("child's exit code:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("the end of the", who)
