"""New lesson: its worker script."""

import pytest

from helpers import launch

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("nprocs", [1, 3])
def test_rank_0_alone_prints_the_sum(nprocs):
    logs = launch("new_lesson.py", nprocs=nprocs, show=False).logs
    assert logs[0] == f"the sum of all ranks' numbers: {sum(range(nprocs))}\n"
    assert not any(logs[1:])
