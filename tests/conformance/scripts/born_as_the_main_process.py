"""A rank is a main process to multiprocessing, with one thread and no child."""
import logging
import multiprocessing
import threading

print([thread.name for thread in threading.enumerate()])
print(threading.main_thread() is threading.current_thread())
me = multiprocessing.current_process()
print(me.name, me.daemon, me._identity, multiprocessing.parent_process(), multiprocessing.active_children())
print(multiprocessing.get_start_method(allow_none=True))
logging.basicConfig(format="%(processName)s %(threadName)s %(levelname)s %(name)s %(filename)s: %(message)s")
logging.warning("said")
fork = multiprocessing.get_context("fork")
fork.Process(target=lambda: print("child", multiprocessing.current_process().name)).start()
