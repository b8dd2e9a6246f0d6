"""What ranks print: read from their log files while they run, shown live, and in the end ordered by rank."""

import ctypes
import os
import re
import sys
import time
from collections import Counter, deque

SHOWN_LINES = 50  #: of one rank in a notebook, a tenth of a terminal's; `run.logs` holds the rest
SHOWN_WIDTH = 1000  #: characters of one line that are shown
KEPT_BYTES = 16 * 2**20  #: of one rank's output that `run.logs` keeps: its beginning and its end
_READ_BYTES = 2**20  #: read from one log at a time, so that a flood cannot fill the kernel's memory

_CONTROL = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|"  # the title of a window
                      r"\x1b\[[0-9;?]*[A-HJKSTfhlnsu]|"  # cursor movements; colours stay
                      r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")
_UNCLEAN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def clean(line):
    """One line as a terminal would leave it: what follows the last `\\r`, without cursor movements."""
    return _CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2])


def clean_lines(text):
    """The lines of a text, each `clean`; quick where nothing is to be done, for there may be millions."""
    lines = text.split("\n")
    return [clean(line) for line in lines] if _UNCLEAN.search(text) else lines


def clip(line, width=SHOWN_WIDTH):
    """The line, cut to `width` characters, saying how many are missing."""
    return line if len(line) <= width else f"{line[:width]}… ({len(line) - width:,} more characters)"


def read_log(path):
    """All that one rank printed, as text: at most KEPT_BYTES of it, its middle left out if there is more."""
    with open(path, "rb") as file:
        raw = file.read(KEPT_BYTES)
        size = file.seek(0, 2)  # no more, though somebody may still write
        if size > KEPT_BYTES:
            half = KEPT_BYTES // 2
            file.seek(size - half)
            raw = raw[:half] + f"\n… ({size - 2 * half:,} bytes left out) …\n".encode() + file.read(half)
    return "\n".join(clean_lines(raw.decode(errors="replace")))


def by_rank(logs):
    """All ranks' logs as one text, ordered by rank, every line tagged, long logs shortened in the middle."""
    shown = []
    for rank, log in enumerate(logs):
        lines = log.splitlines()
        more = len(lines) - SHOWN_LINES
        if more > 0:
            half = SHOWN_LINES // 2
            lines = [*lines[:half], f"… ({more:,} more lines; run.logs[{rank}] has them) …", *lines[-half:]]
        shown += [f"[{rank}] {clip(line)}\n" for line in lines]
    return "".join(shown)


class Tail:
    """Reads what was added to a file since the last look; of a longer line than `longest_line`, its end."""

    def __init__(self, path, longest_line=_READ_BYTES):
        self.file = open(path, "r+b")  # for writing, too, because `free_middle` makes a hole in it
        self.longest_line = longest_line
        self.rest = b""  # what was read of the line that is not whole yet
        self.position = 0
        self.end = None  # where to stop reading, once that is known

    def new_lines(self):
        """Whole lines that have appeared; the unfinished last one waits in `unfinished`."""
        size = _READ_BYTES
        if self.end is not None:
            size = max(0, min(size, self.end - self.position))
        more = self.file.read(size)
        self.position += len(more)
        whole, newline, self.rest = (self.rest + more).rpartition(b"\n")
        if self.longest_line is not None:
            self.rest = self.rest[-self.longest_line:]
        return clean_lines(whole.decode(errors="replace")) if newline else []

    def free_middle(self):
        """Give back to the disk what `read_log` leaves out, while the rank writes on (Linux; fallocate(2))."""
        begin = KEPT_BYTES // 2
        end = self._size() - KEPT_BYTES // 2
        if end > begin and sys.platform == "linux":
            PUNCH_HOLE, KEEP_SIZE = 2, 1
            ctypes.CDLL(None).fallocate64(self.file.fileno(), PUNCH_HOLE | KEEP_SIZE,
                                          ctypes.c_int64(begin), ctypes.c_int64(end - begin))
            if self.position < end:  # what was to be read is not there any more
                self._skip_to(end)

    def stop_growing(self, keep=None):
        """Take the file's present size for its end, whoever still writes; keep the last `keep` bytes."""
        self.end = self._size()
        if keep is not None and self.end - self.position > keep:
            self._skip_to(self.end - keep)

    def _size(self):
        return os.fstat(self.file.fileno()).st_size

    def _skip_to(self, position):
        self.rest = b""
        self.position = self.file.seek(position)

    @property
    def unfinished(self):
        """The line that is being written, such as a progress bar."""
        return clean(self.rest.decode(errors="replace"))


class Display:
    """What shows the output of a run. This one shows nothing."""

    def update(self, lines, unfinished):
        """Show new `lines`, a list of (rank, text), and the `unfinished` line of every rank, {rank: text}."""

    def show_now(self):
        """Show what `update` has held back: a question follows."""

    def finish(self, logs):
        """Leave what stays: `logs` is what each rank printed, by rank."""


class Terminal(Display):
    """Prints lines as they come."""

    def __init__(self):
        self.shown = Counter()  # lines, by rank
        self.unfinished = {}

    def update(self, lines, unfinished):
        self.unfinished = unfinished
        encoding = sys.stdout.encoding or "utf-8"
        for rank, line in lines:
            self.shown[rank] += 1
            if self.shown[rank] <= SHOWN_LINES * 10:
                # A terminal that cannot show an emoji must not end the run.
                print(f"[{rank}] {clip(line)}".encode(encoding, "backslashreplace").decode(encoding))
            elif self.shown[rank] == SHOWN_LINES * 10 + 1:
                print(f"[{rank}] ... (more lines follow; run.logs[{rank}] has them)")
        sys.stdout.flush()

    def finish(self, logs):
        last_lines = [(rank, line) for rank, line in self.unfinished.items() if line]
        self.update(last_lines, {})


class Notebook(Display):
    """Shows the last lines while the ranks run, and removes them in the end; then prints all lines by rank.

    So a cell that is run twice leaves the same outputs, in whatever order the ranks wrote.
    """

    def __init__(self, interval=0.1, lines=20):
        self.interval = interval
        self.last = deque(maxlen=lines)
        self.unfinished = []
        self.due = time.monotonic() + interval
        self.shown = ""
        self.handle = None  # of IPython's display

    def update(self, lines, unfinished):
        self.last.extend(f"[{rank}] {clip(line)}" for rank, line in lines[-self.last.maxlen:])
        self.unfinished = [f"[{rank}] {clip(line)}" for rank, line in sorted(unfinished.items()) if line]
        if time.monotonic() >= self.due:
            self.show_now()

    def show_now(self):
        self._show("\n".join([*self.last, *self.unfinished]))

    def _show(self, text):
        if text == self.shown:
            return
        if self.handle is None:  # only now: a short run needs no display, and a message takes 1 ms
            from IPython.display import display

            self.handle = display({}, raw=True, display_id=True)  # empty at first, as in the end
        content = {"text/plain": text} if text else {}
        self.handle.update(content, raw=True)
        self.shown = text
        self.due = time.monotonic() + self.interval

    def finish(self, logs):
        self._show("")
        if any(logs):
            sys.stdout.write(by_rank(logs))
            sys.stdout.flush()


def display_for(show):
    """What `launch(show=show)` shows its ranks with."""
    if hasattr(show, "finish"):
        return show
    if not show or sys.stdout is None:  # this process was started with its standard output closed
        return Display()
    return Notebook() if in_a_notebook() else Terminal()


def in_a_notebook():
    """Whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
