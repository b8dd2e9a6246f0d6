"""A multiprocessing.Pool that nobody has closed is ended with its work undone, and no process stays."""
# nprocs: 1
import multiprocessing
import time

pool = multiprocessing.Pool(2)
pool.apply_async(time.sleep, (60,))
time.sleep(0.2)
print("submitted")
