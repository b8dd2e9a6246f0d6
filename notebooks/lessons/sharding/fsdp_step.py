"""A step of FSDP2, moment after moment: what is gathered, computed, dropped and reduced, and what a rank holds.

The model is the `GPT` of `helpers.models`, with a unit for each block and one for the rest. A test compares these
bytes with what real ranks hold under `torch.distributed.fsdp.fully_shard`.
"""

from typing import NamedTuple

from helpers.instruments.costs import block_parameters, parameters

WIDTH = 64
VOCABULARY = 256
LENGTH = 64
BLOCKS = 4
#: The outermost unit is what lies outside of the blocks: the embeddings; and the last norm with the head.
REST = "rest"
UNITS = (REST, *(f"block {number}" for number in range(BLOCKS)))
EMBEDDINGS, HEAD = "embeddings", "head"
#: Parameters of a unit, and of both parts of the rest.
PARAMETERS = {unit: block_parameters(WIDTH) for unit in UNITS} | {
    REST: parameters(WIDTH, 0, VOCABULARY, LENGTH),
    EMBEDDINGS: (VOCABULARY + LENGTH) * WIDTH,
    HEAD: 2 * WIDTH + (WIDTH + 1) * VOCABULARY,
}
BYTES = {name: 4 * size for name, size in PARAMETERS.items()}
MODEL = sum(BYTES[unit] for unit in UNITS)
#: Kinds of what a rank holds, as they are drawn, the lowest first.
KINDS = "shards", "gathered", "buffers", "gradients"


class Settings(NamedTuple):
    """How FSDP2 is told to work."""

    ranks: int = 4
    reshard: bool = True
    """`reshard_after_forward` of the blocks. FSDP2 leaves the outermost unit, the rest, whole in either case."""
    prefetch: str = "none"
    """"none"; "backward", FSDP2's default; or "both", with `set_modules_to_forward_prefetch`."""
    batch: str = "one part"
    """"one part"; "two parts", each reduced; or "no sync in part 1": `set_requires_gradient_sync(False)` there."""


class Moment(NamedTuple):
    """What has just happened, and what a rank then holds. Fields from `gathered` on hold names of units."""

    part: int  # of the batch
    phase: str  # "before", "forward" or "backward"
    unit: str  # one of UNITS; or the part of the rest that has computed
    act: str  # "gather", "use" or "drop"
    reduces: bool  # whether gradients are reduced in this part
    travels: tuple  # what was gathered since the moment before; or, in backward's "drop", reduced
    gathered: frozenset  # whose weights are whole
    outputs: frozenset  # whose gather has left its output, a buffer that is as large as the unit
    inputs: frozenset  # whose reduce-scatter has left its input, a buffer just as large
    whole: frozenset  # whose gradients are whole; of the rest, they come in two parts
    reduced: frozenset  # of whose gradients a shard is there

    def held(self, ranks):
        """Bytes that each rank holds, by kind, without activations."""
        gradients = _size(self.whole) + _size(self.reduced) // ranks
        return {
            "shards": MODEL // ranks,
            "gathered": _size(self.gathered),
            "buffers": _size(self.outputs) + _size(self.inputs),
            "gradients": gradients,
        }


def sent(units, ranks):
    """Bytes that each rank sends when these units travel, if a collective sends no more than it must."""
    # In a gather it sends its piece to all others; in a reduce-scatter to each other one what is theirs.
    return _size(units) * (ranks - 1) // ranks


def _size(units):
    return sum(BYTES[unit] for unit in units)


class Rank:
    """A rank in FSDP2's hooks. All ranks do the same at the same time."""

    def __init__(self, settings):
        self.settings = settings
        self.part = 0
        self.reduces = True
        self.gathered, self.outputs, self.inputs = set(), set(), set()
        self.whole, self.reduced = set(), set()
        self.copied = None  # the unit whose parameters were last copied out of a buffer that is kept
        self.travels = []
        self.moments = []

    def note(self, phase, unit, act):
        held = map(frozenset, (self.gathered, self.outputs, self.inputs, self.whole, self.reduced))
        self.moments.append(Moment(self.part, phase, unit, act, self.reduces, tuple(self.travels), *held))
        self.travels = []

    def begin_gather(self, unit):
        """The pieces come from the other ranks, into a buffer."""
        if unit not in self.gathered | self.outputs:
            self.outputs.add(unit)
            self.travels.append(unit)

    def copy_out(self, unit, forward):
        """The parameters are copied out of the buffer; in forward it stays there until the next copy."""
        if unit in self.gathered:
            return
        if forward:
            self.outputs.discard(self.copied)
            self.copied = unit
        else:
            self.outputs.discard(unit)
        self.gathered.add(unit)

    def drop(self, unit):
        self.gathered.discard(unit)

    def reduce(self, unit):
        """Its weights are dropped. Its gradients are copied into a buffer, and of their sum a shard stays."""
        self.drop(unit)
        if self.reduces:
            self.whole -= {unit, EMBEDDINGS, HEAD} if unit == REST else {unit}
            self.inputs = {unit}  # the buffer of the unit before goes
            self.reduced.add(unit)
            self.travels.append(unit)

    def gather(self, phase, unit, following):
        """What comes before a unit computes: its own gather, if need be, and a prefetch of the following unit."""
        forward = phase == "forward"
        self.begin_gather(unit)
        self.copy_out(unit, forward)
        wanted = ("both",) if forward else ("backward", "both")
        if following and self.settings.prefetch in wanted:
            self.begin_gather(following)
        self.note(phase, unit, "gather")


def moments(settings):
    """All moments of a step, from what the rank holds before it to what it holds when backward has ended."""
    rank = Rank(settings)
    rank.note("before", REST, "drop")
    parts = 1 if settings.batch == "one part" else 2
    for part in range(parts):
        rank.part = part
        rank.reduces = settings.batch != "no sync in part 1" or part == 1
        _forward(rank)
        _backward(rank)
    return rank.moments


def _forward(rank):
    for unit, following in zip(UNITS, (*UNITS[1:], None), strict=True):
        rank.gather("forward", unit, following)
        if unit == REST:  # it is used again after the blocks
            rank.note("forward", EMBEDDINGS, "use")
            continue
        rank.note("forward", unit, "use")
        if rank.settings.reshard:
            rank.drop(unit)
        rank.note("forward", unit, "drop")
    rank.note("forward", HEAD, "use")
    # The outermost unit's forward has ended: the last buffer goes.
    rank.outputs.clear()
    rank.copied = None


def _backward(rank):
    blocks = UNITS[:0:-1]
    rank.gather("backward", REST, blocks[0])
    _use(rank, HEAD)
    for unit, following in zip(blocks, (*blocks[1:], None), strict=True):
        rank.gather("backward", unit, following)
        _use(rank, unit)
        rank.reduce(unit)
        rank.note("backward", unit, "drop")
    _use(rank, EMBEDDINGS)
    rank.reduce(REST)
    rank.inputs.clear()  # backward waits for all that is under way
    rank.note("backward", REST, "drop")


def _use(rank, name):
    """Compute backward. Where a part before has left whole gradients, autograd adds to them."""
    rank.whole.add(name)
    rank.note("backward", name, "use")
