"""sys.exit in a thread ends the thread, without a word."""
import sys
import threading

thread = threading.Thread(target=sys.exit, args=(3,))
thread.start()
thread.join()
print("goes on")
