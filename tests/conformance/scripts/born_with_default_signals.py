"""Signals have the handlers that Python gives them, and none is blocked."""
import signal

# Not SIGINT: it is ignored after `nohup … &`.
names = "SIGTERM SIGUSR1 SIGUSR2 SIGPIPE SIGALRM SIGCHLD SIGSEGV SIGXFSZ"
for name in names.split():
    handler = signal.getsignal(getattr(signal, name))
    print(name, getattr(handler, "name", None) or getattr(handler, "__name__", handler))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(signal.ITIMER_REAL))
print(signal.set_wakeup_fd(-1))
