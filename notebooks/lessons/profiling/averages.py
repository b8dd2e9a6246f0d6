"""The profiler's table, with the columns that matter."""


class AveragesTable:
    """The columns of `key_averages().table()` that matter, for the rows that are largest by `sort_by`.

    With `memory` it shows what was allocated in place of the shares of time.
    """

    def __init__(self, averages, rows=8, sort_by="self_cpu_time_total", memory=False):
        averages = list(averages)
        whole = sum(row.self_cpu_time_total for row in averages)
        columns = {"Name": lambda row: row.key, "# of Calls": lambda row: f"{row.count:,}",
                   "Self CPU": lambda row: _time(row.self_cpu_time_total),
                   "CPU total": lambda row: _time(row.cpu_time_total)}
        if memory:
            columns |= {"Self CPU Mem": lambda row: _bytes(row.self_cpu_memory_usage),
                        "CPU Mem": lambda row: _bytes(row.cpu_memory_usage)}
        else:
            columns |= {"Self CPU %": lambda row: f"{row.self_cpu_time_total / whole:.1%}",
                        "CPU time avg": lambda row: _time(row.cpu_time_total / row.count)}
            if any(row.device_time_total for row in averages):
                columns["Device total"] = lambda row: _time(row.device_time_total)
        shown = sorted(averages, key=lambda row: -getattr(row, sort_by))[:rows]
        self.table = [list(columns), *([value(row) for value in columns.values()] for row in shown)]

    def __repr__(self):
        widths = [max(map(len, column)) for column in zip(*self.table, strict=True)]
        return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
                         for row in self.table)


def _time(us):
    return f"{us:.1f} µs" if us < 100 else f"{us / 1000:,.2f} ms"


def _bytes(size):
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:,} B"
