"""A script's function runs in processes that are forked, spawned, and forked from a server."""
# slow
import multiprocessing


def where(queue, kind):
    queue.put((kind, __name__, multiprocessing.current_process().name, multiprocessing.parent_process().name))


if __name__ == "__main__":
    for kind in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(kind)
        queue = context.Queue()
        process = context.Process(target=where, args=(queue, kind))
        process.start()
        print(*queue.get(timeout=20))
        process.join()
        print(process.exitcode)
