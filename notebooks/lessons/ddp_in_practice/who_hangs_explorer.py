"""The hang explorer: lanes of ranks with their operations, which a reader drags, takes away, and puts under an `if`.

It draws what `lessons.ddp_in_practice.who_hangs` works out; a button has real ranks do the same.
"""

from collections import Counter

from helpers.widgets.shapes import PALE, box, circle, doing, path, words
from helpers.widgets.stage import Stage, clicks, field, preset
from lessons.ddp_in_practice.who_hangs import (
    FINISHED,
    LOCAL,
    MOST_OPERATIONS,
    UNDEFINED,
    as_python,
    as_rows,
    differences,
    from_rows,
    in_real_ranks,
    is_undefined,
    kind_of,
    peer_of,
    read,
    state_of,
    stays,
    tree,
    written,
)

SIZE = (560, 480)
LEFT, RIGHT = 60, 556  #: of the lanes
TOP = 42
HIGH = 184  #: of all lanes together
WIDEST = 98  #: of a unit of logical time
BELOW = 242  #: the words below the lanes: the program in Python, and at its right what is said of the hang
SAYS = 262
FOREVER = "#bb281a"
GREEN = "#1b7f4d"
#: Names in two lines, where one line has no room.
TWO_LINES = {
    "all_reduce": "all_\nreduce",
    "broadcast": "broad-\ncast",
    "compute": "com-\npute",
    "barrier": "bar-\nrier",
}
LINE = 19  #: between two of these lines
UNDEFINED_BY_GLOO = """Not defined: a rank aborts if it gets
more bytes than it expects; others
lose their connection to it, or wait."""
UNDEFINED_BY_NCCL = "Not defined: “hangs, crashes, or\ndata corruption” (NCCL's guide)"
WELL = "compute, bucket 0, bucket 1, save, barrier | compute, bucket 0, bucket 1, barrier"
PACE = 1000  #: milliseconds
SECONDS = 2  #: that real ranks are given


# ----------------------------------------------------------------------------------------- what a reader may change


def moved(program, rank, place, to):
    """The program with an operation at another place of its lane."""
    lane = list(program[rank])
    lane.insert(to, lane.pop(place))
    return [*program[:rank], lane, *program[rank + 1:]]


def without(program, rank, place):
    """The program without an operation of one rank."""
    lane = program[rank][:place] + program[rank][place + 1:]
    return [*program[:rank], lane, *program[rank + 1:]]


def called_by(program, rank, place, callers):
    """The program whose script has this operation under a condition that holds in these ranks only, or in all."""
    rows = as_rows(program)
    mine = [number for number, (_, ranks) in enumerate(rows) if rank in ranks][place]
    rows[mine] = rows[mine][0], callers
    return from_rows(rows, len(program))


# -------------------------------------------------------------------------------------------------------- the scene


def scene(program, chosen, tried):
    """A frame for each unit of logical time.

    Args:
        program: A text, as `read` takes it.
        chosen: ([rank, place] of an operation or "", a frame), as a click says it; or None.
        tried: (how often, a frame): real ranks are to run the program; or None.
    """
    try:
        lanes = read(program)
    except ValueError as error:
        return _unreadable(str(error))
    if tried is not None:
        return _in_real_ranks(lanes, program, chosen, tried[0])
    return {"size": SIZE, "pace": PACE, "frames": _Picture(lanes, chosen).frames()}


def _unreadable(why):
    shapes = [words("why", 280, 120, "?", "middle", size=60)]
    note = f"{why} Change the text; the rest of it is still there."
    return {"size": SIZE, "frames": [{"title": "This is no program", "note": note, "shapes": shapes}]}


def _in_real_ranks(lanes, program, chosen, times):
    """The frames, of which the last one also shows what the ranks of a launch have done."""
    *frames, last = _Picture(lanes, chosen, times + 1).frames()
    try:
        tried = in_real_ranks(lanes, seconds=SECONDS)[0]
        title, verdict, sentences = _compared(lanes, tried)
    except (OSError, RuntimeError) as error:
        title, verdict, sentences = "Real ranks did not start", "", [str(error)]
    note = " ".join(sentences)
    verdict = words("verdict", 170, 441, verdict, bold=True, size=14)
    shown = {"title": title, "note": note, "alt": f"{title}. {note}", "shapes": [*last["shapes"], verdict]}
    means = {"program": program, "chosen": chosen, "tried": None}
    return {"size": SIZE, "pace": PACE, "frames": [*frames, shown], "frame": -1, "means": means}


def _compared(lanes, tried):
    """A title, a verdict and sentences: whether real ranks have done what is drawn."""
    wrong = differences(lanes, tried)
    if wrong:
        return "In real ranks: something else", "not as drawn", [f"{one}." for one in wrong]
    if is_undefined(lanes):
        ends = [f"rank {rank}: {end.state} in {end.operation}" if end.operation else f"rank {rank}: {end.state}"
                for rank, end in enumerate(tried.ends)]
        return "In real ranks, this time", "it may differ", [_sentence(ends), tried.words]
    if not tried.words:
        return "In real ranks: the same", "as drawn ✓", ["All ranks have finished."]
    return "In real ranks: the same", "as drawn ✓", ["launch says:", tried.words]


class _Picture:
    """A program in logical time. An operation that a rank never comes to stands behind the one in which it waits."""

    def __init__(self, lanes, chosen, tried=1):
        self.lanes = lanes
        self.tried = tried
        self.stays = stays(lanes)
        self.row = min(80, HIGH / len(lanes))
        self.high = min(36, 0.6 * self.row)
        come = [stay for lane in self.stays for stay in lane if stay.comes is not None]
        self.end = max([stay.comes + 1 for stay in come], default=0)
        if any(stay.begins is None for stay in come):
            self.end += 1  # a moment in which nothing happens any more
        self.units = [self._units(lane) for lane in self.stays]
        columns = max(1, *(unit + 1 for units in self.units for unit in units), self.end + 0.8)
        self.wide = min(WIDEST, (RIGHT - LEFT) / columns)
        self.size = self._size_of_names()
        self.is_undefined = is_undefined(lanes)
        self.chosen = self._place(chosen)

    def _size_of_names(self):
        """As large as the longest name allows."""
        longest = max([len(operation) for lane in self.lanes for operation in lane], default=1)
        return max(12, min(16, int((self.wide - 10) / (0.58 * longest))))

    def _place(self, chosen):
        place = chosen and chosen[0]
        if not place or place[0] >= len(self.lanes) or place[1] >= len(self.lanes[place[0]]):
            return None
        return tuple(place)

    def _units(self, lane):
        """Where each operation of a rank stands, in units of time."""
        units = []
        for stay in lane:
            at = stay.begins if stay.begins is not None else stay.comes
            units.append(units[-1] + 1 if at is None else at)
        return units

    def frames(self):
        frames = []
        fixed = [*self._names(), *_code(self.lanes), *self._toolbar(), *self._try()]
        for now in range(self.end + 1):
            title, note = self._said(now)
            shapes = [*fixed, *self._strips(now), *self._links(now), *self._boxes(now), *self._arrows(now),
                      *self._messages(now), *self._recorder(now)]
            if now == self.end:
                shapes += self._verdicts()
            frames.append({"title": title, "note": note, "alt": f"{title}. {note}", "shapes": shapes})
        return frames

    # ------------------------------------------------------------------------------------------------- places

    def x(self, unit):
        return LEFT + self.wide * unit

    def y(self, rank):
        """The middle of a rank's boxes."""
        return TOP + self.row * (rank + 0.5) + 5

    def current(self, rank, now):
        """The operation in which a rank was until now, its number in the lane; that of none behind the last one."""
        for place, stay in enumerate(self.stays[rank]):
            if stay.ends is None or stay.ends >= now:
                return place
        return len(self.stays[rank])

    def spot(self, rank, now):
        """Where a rank is: the middle of the unit in which it came to its operation."""
        place = self.current(rank, now)
        lane = self.stays[rank]
        if place < len(lane):
            return self.x(lane[place].comes + 0.5)
        return self.x(lane[-1].ends if lane else 0) + 32

    def waits_for(self, rank, now):
        """The ranks for whom a rank has waited until now: those that had not come, of those that it needs."""
        place = self.current(rank, now)
        if place == len(self.stays[rank]):
            return ()
        stay = self.stays[rank][place]
        if stay.comes >= now:
            return ()
        if stay.begins is None:
            return stay.waits_for
        return tuple(other for other, there in stay.partners if self.stays[other][there].comes >= now)

    # ------------------------------------------------------------------------------------------------- shapes

    def _names(self):
        for rank in range(len(self.lanes)):
            yield words(f"rank {rank}", 2, self.y(rank), f"rank {rank}", bold=True, size=15)

    def _strips(self, now):
        """Waiting, in time: behind the boxes, as long as it lasts."""
        for rank, lane in enumerate(self.stays):
            for place, stay in enumerate(lane):
                if stay.comes is None or stay.comes > now:
                    continue
                until = now if stay.begins is None else min(now, stay.begins)
                left, right = self.x(stay.comes), self.x(until)
                if stay.begins is None and now == self.end:
                    right = RIGHT
                if right > left:
                    look = doing("waiting", opacity=0.55, layer=-1)
                    yield box(f"waits {rank}/{place}", left, self.y(rank) - 8, right - left, 16, **{"from": {"w": 0}},
                              **look)

    def _boxes(self, now):
        """Each operation: pale before it runs, in its colour from then on; one in which a rank waits is hatched."""
        for rank, lane in enumerate(self.stays):
            seen = Counter()
            for place, stay in enumerate(lane):
                seen[stay.operation] += 1
                yield from self._operation(rank, place, f"{rank} {stay.operation} {seen[stay.operation]}", now)
            ends = lane[-1].ends if lane else 0
            if ends is not None and ends <= now:
                yield box(f"end {rank}", self.x(ends) + 4, self.y(rank) - 11, 60, 22, text="done ✓", size=14,
                          fill=GREEN, round=11)

    def _operation(self, rank, place, name, now):
        stay = self.stays[rank][place]
        is_stuck = stay.comes is not None and stay.begins is None and stay.comes < now
        if stay.begins is not None and stay.begins < now:
            look = doing("compute" if stay.operation in LOCAL else "communication")
            tip = "done"
        elif is_stuck:
            look = doing("waiting", line=FOREVER, width=3)
            tip = "not defined: another rank has a tensor of another size" if stay.is_undefined else "it waits here"
        else:
            look = {"fill": PALE, "line": "#777777", "dash": True}
            tip = "never" if stay.comes is None and now == self.end else "not yet"
        if (rank, place) == self.chosen:
            look.update(line="#e69f00", width=4, dash=None)
        x, high = self.x(self.units[rank][place]) + 2, self.high
        wide = self.wide - 4
        text = stay.operation
        if wide < 0.58 * self.size * len(text) + 4:
            text = TWO_LINES.get(text, text.replace(" ", "\n"))
        places = [[self.x(unit) + 2, self.y(rank) - high / 2] for unit in self.units[rank]]
        changed = [written(moved(self.lanes, rank, place, to)) for to in range(len(places))]
        yield box(name, x, self.y(rank) - high / 2, wide, high, text=text, size=self.size, tip=f"rank {rank}, {tip}",
                  click={"chosen": [rank, place]}, drag=("program", places, changed), **look)
        if stay.number is not None:
            yield words(f"number {name}", x + 2, self.y(rank) - high / 2 - 9, f"#{stay.number}", size=14)

    def _links(self, now):
        """A line through the operations of all ranks that have ended together."""
        for rank, place, stay in self._ended(now):
            lowest = max([rank, *(other for other, _ in stay.partners)])
            if rank < lowest and (stay.operation != "broadcast" or rank == 0):
                x = self.x(stay.begins + 0.5)
                points = [[x, self.y(rank)], [x, self.y(lowest)]]
                yield path(f"together {rank}/{place}", points, line=FOREVER, width=3, opacity=0.6, layer=-1)

    def _ended(self, now):
        for rank, lane in enumerate(self.stays):
            for place, stay in enumerate(lane):
                if stay.partners and stay.ends is not None and stay.ends <= now:
                    yield rank, place, stay

    def _messages(self, now):
        """What has just travelled from rank to rank."""
        for rank, place, stay in self._ended(now):
            if stay.ends != now:
                continue
            for other in _sends_to(stay.operation, rank, len(self.lanes)):
                x = self.x(stay.begins + 0.5)
                y = self.y(other)
                begins = {"from": {"y": self.y(rank) - 7}}
                yield circle(f"message {rank}/{place} {other}", x, y, 7, fill="#e69f00", passes=True, layer=1, **begins)

    def _arrows(self, now):
        """From who waits to those for whom it waits: thick, if it is for ever."""
        is_end = now == self.end
        for rank in range(len(self.lanes)):
            for other in self.waits_for(rank, now):
                down = 1 if other > rank else -1
                near = down * min(11, self.wide / 8)  # beside the arrow of the other direction
                beside = near if abs(other - rank) == 1 else down * self.wide / 2  # a long one runs between boxes
                x = max(self.spot(rank, now), self.spot(other, now)) + beside
                is_at_its_box = x < self.spot(rank, now) + self.wide / 2
                has_finished = self.current(other, now) == len(self.stays[other])
                here = [x, self.y(rank) + down * (self.high / 2 if is_at_its_box else 8)]
                end = self.spot(other, now) + near if has_finished else x
                there = [end, self.y(other) - down * (self.high / 2 + 3)]
                look = {"line": FOREVER, "width": 4} if is_end else {"line": "#777777", "width": 2, "dash": True}
                yield path(f"arrow {rank} {other}", [here, there], arrow=True, layer=1, **look)

    def _toolbar(self):
        """What can be done with the operation that is chosen."""
        if self.chosen is None:
            yield words("toolbar", 2, 14, "Drag an operation, or click it.", size=15)
            return
        rank, place = self.chosen
        program, operation = self.lanes, self.lanes[rank][place]
        last, everybody = len(program[rank]) - 1, set(range(len(program)))
        can = {}
        if place:
            can["◂ earlier"] = moved(program, rank, place, place - 1), [rank, place - 1]
        if place < last:
            can["later ▸"] = moved(program, rank, place, place + 1), [rank, place + 1]
        can["take away"] = without(program, rank, place), ""
        if peer_of(operation) is None:
            can["only on rank 0"] = called_by(program, rank, place, {0}), ""
            can["on all ranks"] = called_by(program, rank, place, everybody), ""
        x = 2
        for text, (changed, chosen) in can.items():
            if changed == program or max(map(len, changed)) > MOST_OPERATIONS:
                continue
            wide = 7.2 * len(text) + 16
            yield box(f"do {text}", x, 1, wide, 26, text=text, size=14, fill="#d3e4f3", line="#264bfb",
                      click={"program": written(changed), "chosen": chosen}, tip=f"{operation} of rank {rank}: {text}")
            x += wide + 5
        yield box("do close", x, 1, 26, 26, text="×", size=16, fill="#d3e4f3", line="#264bfb", click={"chosen": ""},
                  tip="choose none")

    def _try(self):
        yield box("try", 2, 428, 160, 26, text="try it in real ranks", size=15, fill="#264bfb",
                  click={"tried": self.tried}, tip=f"by launch, in about {SECONDS} seconds")

    def _recorder(self, now):
        """The last entry of each rank in the flight recorder."""
        yield words("recorder", SAYS, BELOW, "Flight recorder, last entries", bold=True, size=15)
        for rank, lane in enumerate(self.stays):
            entries = [stay for stay in lane if stay.number and stay.comes is not None and stay.comes < now]
            text = "empty"
            if entries:
                last = entries[-1]
                state = "not retired"
                if last.ends is not None and last.ends <= now:
                    state = "retired"
                elif now == self.end and self.is_undefined:
                    state = "not defined"
                text = f"{last.number} {kind_of(last.operation)}, {state}"
            yield words(f"recorder {rank}", SAYS, BELOW + LINE * (rank + 1), f"rank {rank}: {text}", size=15)

    def _verdicts(self):
        """What gloo and NCCL make of it."""
        y = BELOW + LINE * (len(self.lanes) + 1) + 4
        for name, text in _verdicts(self.lanes, self.stays).items():
            lines = text.count("\n") + 1
            yield words(name, SAYS, y, name, bold=True, size=15)
            yield words(f"{name} says", SAYS, y + LINE + 9.4 * (lines - 1), text, size=15)
            y += 4 + LINE * (lines + 1)

    # ------------------------------------------------------------------------------------------------- words

    def _said(self, now):
        """The title and the note of a frame."""
        if now == 0 < self.end:
            return "Before", "Each rank is to do its operations from left to right. # counts its collectives."
        did, waits = {}, {}
        for rank, lane in enumerate(self.stays):
            others = self.waits_for(rank, now)
            if others:
                waits.setdefault(others, []).append(rank)
            elif self.current(rank, now) < len(lane):
                did.setdefault(lane[self.current(rank, now)].operation, []).append(rank)
        waiting = [f"{_ranks(ranks)} {'wait' if len(ranks) > 1 else 'waits'} for {_ranks(others)}"
                   for others, ranks in waits.items()]
        if now < self.end:
            doing_it = [f"{_ranks(ranks)}: {operation}" for operation, ranks in did.items()]
            return f"Time {now}", _sentence([*doing_it, *waiting])
        if not waits:
            return "All ranks arrive", "Every rank has finished all its operations."
        if self.is_undefined:
            return "All-reduces of different sizes meet: not defined", _sizes(self.stays)
        return f"{_sentence(waiting)[:-1]}, for ever", _sentence(self._where())

    def _where(self):
        """Which ranks are where in the end."""
        places = {}
        for rank, lane in enumerate(self.stays):
            place = "finished"
            if state_of(lane) != FINISHED:
                stay = lane[self.current(rank, self.end)]
                place = f"in {stay.operation}" + (f" (#{stay.number})" if stay.number else "")
            places.setdefault(place, []).append(rank)
        for place, ranks in places.items():
            many = len(ranks) > 1
            verb = ("have" if many else "has") if place == "finished" else ("are" if many else "is")
            yield f"{_ranks(ranks)} {verb} {place}"


def _sentence(parts):
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _ranks(ranks):
    numbers = [str(rank) for rank in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def _sizes(lanes):
    names = sorted({stay.operation for lane in lanes for stay in lane if stay.is_undefined})
    return (f"The all-reduces {' and '.join(names)} have the same number, but their tensors have different sizes. "
            "Nobody compares the sizes beforehand.")


def _sends_to(operation, rank, ranks):
    """To whom a rank sends in an operation, over gloo; of a barrier, in its first round."""
    name, _, peer = operation.partition(" ")
    if name == "send":
        return [int(peer)]
    if name == "broadcast":
        return [other for other in tree(rank, ranks) if other > rank]
    if name == "barrier":
        return [(rank + 1) % ranks]
    if kind_of(operation) == "all_reduce":
        return [(rank - 1) % ranks]
    return []


def _verdicts(lanes, all_stays):
    """{who: what it makes of this end}: gloo as it was measured, NCCL by its documentation and torch's."""
    states = [state_of(lane) for lane in all_stays]
    if set(states) == {FINISHED}:
        return {}
    if UNDEFINED in states:
        return {"gloo": UNDEFINED_BY_GLOO, "NCCL": UNDEFINED_BY_NCCL}
    stuck = [next(stay for stay in lane if stay.begins is None) for lane in all_stays if state_of(lane) != FINISHED]
    gloo = "It raises after 30 minutes, by default."
    if any(states[rank] == FINISHED for stay in stuck for rank in stay.waits_for):
        gloo = "It raises after 30 minutes, by default,\nor as soon as a finished rank exits."
    collectives = {}  # by number, which ones the ranks call
    for stay in stuck:
        if stay.number:
            collectives.setdefault(stay.number, set()).add(stay.operation)
    nccl = "The process ends after 10 minutes, by\ndefault (torch, init_process_group)."
    if not collectives:
        nccl = "send and recv block the GPU, unless in\none group (NCCL's guide, ncclSend)."
    elif {"barrier", "all_reduce"} in collectives.values():
        nccl = "torch's barrier is an all-reduce of a\nnumber there, so it can meet the loss."
    elif any(len(operations) > 1 for operations in collectives.values()):
        nccl = UNDEFINED_BY_NCCL
    return {"gloo": gloo, "NCCL": nccl}


def _code(lanes):
    """The program as a script."""
    yield words("code", 2, BELOW, "The same in Python", bold=True, size=15)
    lines = as_python(lanes)
    room = 9
    if len(lines) > room:
        lines = [*lines[:room - 1], "…"]
    for number, line in enumerate(lines):
        indentation = len(line) - len(line.lstrip())
        yield words(f"line {number}", 2 + 4 * indentation, BELOW + LINE * (number + 1), line.strip(), size=15)


def hang_explorer():
    """Hang explorer: lanes of ranks with their operations. Drag one, take one away, or put it under an if; see which
    rank waits for which one, what gloo and NCCL make of it, and what the flight recorder holds."""
    controls = {
        "program": field("program", WELL),
        "chosen": clicks(),
        "tried": clicks(),
    }
    look = "Press Play: all arrive. Now drag or take away an operation of one rank. Who waits for whom?"
    presets = {
        "a barrier under if": preset("Press Play. Who waits for whom at the end? Click the barrier, and mend it.",
                                     program="save, barrier, all_reduce | all_reduce"),
        "one is skipped": preset(
            "Rank 1 leaves one barrier out. In which operation does each rank stop?",
            program="bucket 0, barrier, bucket 0, barrier, bucket 0 | bucket 0, barrier, bucket 0, bucket 0"
                    " | bucket 0, barrier, bucket 0, barrier, bucket 0"),
        "uneven batches": preset("One rank has a batch more. Which one hangs, and in which operation?",
                                 program="bucket 0, bucket 0, bucket 0 | bucket 0, bucket 0"),
        "both send": preset("Each sends, then receives. Does a small send end at once? Mend it by one drag.",
                            program="send 1, recv 1 | send 0, recv 0"),
    }
    return Stage("hang_explorer", hang_explorer.__doc__, scene, controls, look, presets)
