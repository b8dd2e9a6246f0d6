"""Umask, niceness and the working folder are those of the launcher."""
import os
import resource
import stat
from pathlib import Path

Path("made").write_text("x")
print(oct(stat.S_IMODE(os.stat("made").st_mode)), oct(os.umask(0o22)))
print(os.nice(0) == os.getpriority(os.PRIO_PROCESS, os.getppid()))
print(Path.cwd() == Path(__file__).parent, Path("script.py").exists(), os.getcwd() == os.path.realpath("."))
print(resource.getrlimit(resource.RLIMIT_CPU)[0] == resource.RLIM_INFINITY, os.sched_getscheduler(0))
print(len(os.sched_getaffinity(0)) == os.cpu_count())
