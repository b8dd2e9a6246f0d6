"""The speed ladder: its rungs as data, how the last ones train, the chart, and the reader's best."""

import math
from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from helpers import launch
from helpers.data import Digits
from helpers.models import GPT
from lessons.speed_ladder import recorded
from lessons.speed_ladder.ladder import best_so_far, draw_ladder
from lessons.speed_ladder.rungs import changed, helps, own_rung, record, rungs
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("fast_bf16", [True, False])
def test_rungs_are_small_and_apply(fast_bf16):
    found = rungs(fast_bf16)
    assert len({rung.title for rung in found}) == len(found) >= 12
    assert [rung.number for rung in found[:3]] == [0, 1, 2]
    for rung in found[1:]:
        assert 1 <= rung.changed_lines <= 10, rung.title
        assert not rung.lesson or len(list((ROOT / "notebooks").glob(f"{rung.lesson}_*.ipynb"))) == 1
        compile(rung.source, rung.title, "exec")


def test_the_record_says_what_is_kept():
    measured = record()["rungs"]
    found = rungs(fast_bf16=True)
    for below, rung in pairwise(found):
        if below.kept:
            assert rung.before == below.source
        else:
            assert rung.before == below.before, "what comes after a lost rung builds on the one below it"
    assert {*measured} == {rung.title for rung in found} - {"The slow script", "torch.compile"}, "record it anew"
    for rung in found[1:-1]:
        turns = measured[rung.title]
        faster = [slow > 1.01 * fast for slow, fast in zip(turns["below"], turns["rung"], strict=True)]
        assert rung.kept == (sum(faster) >= 4)
        assert [one.title for one in found[:rung.number] if one.kept][-1] == turns["beside"], "record it anew"
    assert not found[-1].kept and "bfloat16" not in [rung.title for rung in rungs(fast_bf16=False) if rung.kept]
    assert helps({"below": [1.02] * 5, "rung": [1] * 5})
    assert helps({"below": [1.02] * 4 + [0.5], "rung": [1] * 5}), "one turn may be disturbed"
    assert not helps({"below": [2] * 3 + [1] * 2, "rung": [1] * 5}), "two turns without a gain are enough"


def two_epochs(rung_source, folder, nprocs=1):
    """The weights after two epochs, as the script reports them."""
    script = folder / "rung.py"  # a file, as in the lesson: loader workers import it
    script.write_text(rung_source)
    first, second = launch(script, nprocs, [str(folder), "--epochs", "2"], show=False, timeout=60).reports[0]
    assert first["seconds"] > 0 and 0 <= first["right"] <= 1 and math.isfinite(first["loss"])
    return second["weights"]


def test_what_only_computes_sooner_trains_to_the_same_bits(tmp_path):
    for number, part in enumerate(["train"] * 32 + ["test"] * 8):
        image, label = Digits(train=part == "train")[number]
        (tmp_path / part / str(label)).mkdir(parents=True, exist_ok=True)
        image.resize((64, 64)).save(tmp_path / part / str(label) / f"{number:04}.jpg")
    ladder = {rung.title: rung for rung in rungs(True)}
    sources = {title: rung.source for title, rung in ladder.items() if title not in ("Two ranks", "torch.compile")}
    sources["the top"] = ladder["Two ranks"].before
    weights = {title: two_epochs(source, tmp_path) for title, source in sources.items()}
    for title in ("Test once an epoch", "Two workers load", "Decode once"):
        assert weights[title] == weights["The slow script"], title
    for title in ("Pool before ReLU", "Augment whole batches", "Test in one batch, without a graph"):
        [below] = [other for other, source in sources.items() if source == ladder[title].before and other != "the top"]
        assert weights[title] == weights[below], title

    assert two_epochs(ladder["Two ranks"].source, tmp_path, nprocs=2) == pytest.approx(weights["the top"], rel=0.01)


def test_hunks_say_what_they_cannot_find():
    assert changed("a\nb\nc", "-b\n+B") == "a\nB\nc" and changed("a\nb", "-a\n@@\n b\n+c") == "b\nc"
    assert changed("a\nb", "@@\n-a\n+A\n@@") == "A\nb", "as the diffs on the page, which begin with @@"
    for hunks, said in (("-x", r"stand 0 times.*are the spaces"), ("-a", "stand 2 times.*once:"),
                        ("a", "begins with none"), ("+new", "names no line"), (" \n+new", "names no line")):
        with pytest.raises(ValueError, match=said):
            changed("a = 1\na = 2", hunks)


def test_own_rungs_are_changes_and_python():
    top = rungs(True)[3]
    mine = own_rung(top, "-lr=0.01\n+lr=0.02")
    assert mine.changed_lines == 2 and "lr=0.02" in mine.source and mine.kept
    assert own_rung(top, mine.diff).source == mine.source, "a diff of the page can be pasted"
    for hunks, said in (("", "change nothing"), ("-lr=0.01\n+lr=0.01", "change nothing"),
                        ("-lr=0.01\n+lr=(0.01", "is no Python, line"),
                        ("    -lr=0.01\n    +lr=0.02", "are the spaces")):
        with pytest.raises(ValueError, match=said):
            own_rung(top, hunks)


def test_chart_shows_what_is_measured():
    found, fig = rungs(True), plt.figure()
    ax = fig.add_subplot()
    draw_ladder(ax, found, {}, {"memory": 5000})
    assert "none measured yet" in fig.get_label()
    draw_ladder(ax, found, {"The slow script": [100, 90, 130], "Two ranks": [250]}, {"memory": 5000})
    bars = [bar.get_width() for bars in ax.containers for bar in bars if bar.get_width()]
    assert bars == [100, 250]
    assert "The slow script 1.0 times, Two ranks (lost) 2.5 times" in fig.get_label()
    assert "memory 50 times" in fig.get_label() and len(ax.get_yticklabels()) == len(found)
    plt.close(fig)


def test_own_best_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))
    assert best_so_far("cpu") is None
    assert [best_so_far("cpu", speed) for speed in (20.0, 30.0, 25.0)] == [20.0, 30.0, 30.0]
    assert best_so_far("cpu") == 30.0 and best_so_far("gpu") is None
    assert not (tmp_path / "progress.json").exists(), "another file than the exercises'"
    (tmp_path / "progress.ladders.json").write_text("no JSON")
    assert best_so_far("cpu") is None and best_so_far("cpu", 3.0) == 3.0
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.ladders.json" / "not" / "a" / "folder"))
    assert best_so_far("cpu", 2.0) == 2.0, "what cannot be kept is no error"


def test_work_of_a_token_is_what_torch_counts():
    shape = {"width": 64, "layers": 2, "heads": 4, "vocabulary": 300, "length": 32}
    tokens = torch.randint(300, (2, 32))
    # Attention as products, which count.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        cross_entropy(GPT(**shape)(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert counted.get_total_flops() == pytest.approx(tokens.numel() * recorded.flops(shape))
