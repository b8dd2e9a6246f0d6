"""DistributedDataParallel: its pictures of collectives."""

import pytest
from matplotlib.colors import to_hex

from helpers.figures import alt, title
from lessons.distributed_data_parallel import collectives_explorer as collectives
from tests.test_widgets_ring_buckets import axes, shown, style  # noqa: F401 - a fixture

BEFORE = [[1, 2, 3], [10, 20, 30], [100, 200, 300]]
AFTER = {
    "broadcast": [[[1, 2, 3]]] * 3, "all_reduce": [[111, 222, 333]] * 3, "gather": [BEFORE, None, None],
    "all_gather": [BEFORE] * 3, "scatter": [[1], [2], [3]], "barrier": BEFORE,
}


def drawn(name, before, after):
    ax = axes()
    collectives.draw(ax, name, before, after)
    return ax


@pytest.mark.usefixtures("style")
@pytest.mark.parametrize("name", AFTER)
def test_a_collective_is_drawn_legibly(name):
    ax = drawn(name, BEFORE, AFTER[name])
    texts = shown(ax.figure)
    assert title(ax.figure) == f"Figure: {name}" and f"{name}: rank 0 held 1, 2, 3 and then" in alt(ax.figure)
    assert collectives.WORDS[name] in texts and texts.count("nothing") == AFTER[name].count(None)
    numbers = [int(text) for text in texts if text.isdigit()]
    held = [number for rank in AFTER[name] if rank for part in collectives._parts(rank) for number in part]
    assert sorted(numbers) == sorted([*(number for rank in BEFORE for number in rank), *held])
    boxes = ax.collections[0].get_paths()
    assert len(boxes) == len(numbers) and max(path.vertices[:, 0].max() for path in boxes) <= ax.get_xlim()[1]


def test_colours_show_the_origin_and_sums_are_dark():
    ax = drawn("all_to_all", BEFORE, [[1, 10, 100], [2, 20, 200], [3, 30, 303]])
    fills = [to_hex(fill) for fill in ax.collections[0].get_facecolors()]
    assert len(fills) == 18 and fills.count(collectives.SUM) == 1 and len(set(fills)) == 4


def test_four_ranks_still_fit():
    before = [[10 ** rank * place for place in range(1, 5)] for rank in range(4)]
    ax = drawn("all_gather", before, [before] * 4)
    boxes, numbers = ax.collections[0], [text for text in ax.texts if text.get_text().isdigit()]
    ax.figure.draw_without_rendering()
    for box, number in zip(boxes.get_paths(), numbers, strict=True):
        assert ax.transData.transform_path(box).get_extents().width >= number.get_window_extent().width
