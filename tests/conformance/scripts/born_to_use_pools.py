"""Pools of processes run the script's functions."""
import multiprocessing
from concurrent.futures import ProcessPoolExecutor


def square(x):
    return x * x


if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        print(list(pool.map(square, range(4))))
    with multiprocessing.Pool(2) as pool:
        print(pool.map(square, range(4)), pool.apply_async(square, (5,)).get(10))
    with multiprocessing.Manager() as manager:
        shared = manager.dict(a=1)
        print(dict(shared))
