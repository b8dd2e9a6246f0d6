"""An exception goes to the script's own sys.excepthook, which may call the usual one."""
# nprocs: 1
import sys
import threading


def hook(kind, error, trace):
    print("my hook:", kind.__name__, error, trace.tb_lineno, trace.tb_next, trace.tb_frame.f_code.co_name)
    print(sys.modules["__main__"].hook is hook, threading.current_thread().name)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = hook
raise ValueError("boom")
