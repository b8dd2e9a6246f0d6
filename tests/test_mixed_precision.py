"""Mixed precision: formats bit by bit, its explorers, what its worker shows, and the models behind its exercises."""

import math
import struct

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn.functional import cross_entropy

from helpers import launch
from helpers.data import Digits
from helpers.figures import alt, title
from helpers.models import Masters
from lessons.mixed_precision import float_explorer
from lessons.mixed_precision import loss_scale_explorer as loss_scale
from lessons.mixed_precision.exercises import NETWORKS, FirstOverflow, LargestBatch
from lessons.mixed_precision.formats import FORMATS, encode, parse, rounded

STORED = {name: form for name, form in FORMATS.items() if name != "tf32"}
NUMBERS = [0.0, -0.0, 1.0, -1.5, 0.1, 1 / 3, 65504.0, 65519.0, 65520.0, 1e-8, 2.0**-24, 2.0**-25, 6e-8, 448.0, 1e39]


@pytest.fixture(autouse=True, scope="module")  # also while the module's other fixtures train
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ------------------------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("name", STORED)
def test_a_format_agrees_with_torch(name):
    form, info = FORMATS[name], torch.finfo(FORMATS[name].dtype)
    assert (form.bits, 2**-form.fraction_bits, form.smallest_normal) == (info.bits, info.eps, info.smallest_normal)
    smallest = info.smallest_normal * info.eps  # subnormal, with one bit left
    assert encode(smallest, form)[3:] == (smallest, "subnormal") and encode(smallest / 2, form)[3:] == (0, "zero")


@pytest.mark.parametrize("name, code", [("fp32", ">f"), ("fp16", ">e")])
def test_bits_agree_with_another_implementation(name, code):
    for number in NUMBERS:
        encoded = encode(number, FORMATS[name])
        try:
            wanted = "".join(f"{byte:08b}" for byte in struct.pack(code, number))
        except OverflowError:
            wanted = "0" + "1" * len(encoded.exponent) + "0" * len(encoded.fraction)
        assert encoded.sign + encoded.exponent + encoded.fraction == wanted, number


def test_tf32_rounds_to_the_nearest_and_leaves_the_rest():
    torch.manual_seed(0)
    tensor, form = torch.randn(10_000) * 10.0 ** torch.randint(-30, 30, (10_000,)), FORMATS["tf32"]
    step = 2.0 ** (tensor.double().abs().log2().floor() - form.fraction_bits)
    assert torch.equal(rounded(tensor, form).double(), (tensor.double() / step).round() * step)
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0])
    assert torch.equal(rounded(special, form).nan_to_num(7), special.nan_to_num(7))


def test_parse():
    for text, number in {"0.1": 0.1, " -3e-8 ": -3e-8, "1/3": 1 / 3, "2**-24": 2.0**-24, "2 ^ 10": 1024.0,
                         "-2**2": -4.0, "1e999": math.inf, "-inf": -math.inf}.items():
        assert parse(text) == number, text
    for text in ("", "abc", "1,5", "1/0", "2**", "__import__('os')", "1/3/3"):
        with pytest.raises(ValueError, match=r"Write for example 0\.1"):
            parse(text)


# ----------------------------------------------------------------------------------------------------- float explorer


@pytest.fixture
def ax():
    return Figure(figsize=(10, 3.6)).subplots()


def texts(ax):
    return [text.get_text() for text in ax.texts]


def bits_shown(ax, row):
    """The zeros and ones of a row, from left to right."""
    places = sorted((x, line.get_label()) for line in ax.lines for x, y in line.get_xydata() if y == row)
    return "".join(label for _, label in places).replace("_", "")


@pytest.mark.parametrize("text, shown", [
    ("0.1", ["0.100000001", "0.0999755859", "0.100097656"]), ("65520", ["65520", "65536", "overflow: inf"]),
    ("1e-8", ["underflow: 0"]), ("1e-7", ["1.9e-01, subnormal"]), ("1", ["exact"]), ("nan", ["nan", "exact"]),
    ("449", ["448"]), ("1000", ["overflow: its largest"]), ("2**-20", ["exact, subnormal"])])
def test_float_explorer_shows(ax, text, shown):
    float_explorer.draw(ax, text)
    assert set(shown) <= set(texts(ax)) and all(name in texts(ax) for name in FORMATS)
    assert title(ax.figure) == f"Figure: {text}"
    assert all(name in alt(ax.figure) for name in FORMATS) and shown[0] in alt(ax.figure)


@pytest.mark.parametrize("number", ["0.1", "65520"])
def test_float_explorer_shows_the_bits(ax, number):
    float_explorer.draw(ax, number)
    for row, form in enumerate(FORMATS.values()):
        encoded = encode(parse(number), form)
        assert bits_shown(ax, row).rstrip() == encoded.sign + encoded.exponent + encoded.fraction


@pytest.mark.parametrize("text", ["", "$x$ \\frac{"])
def test_float_explorer_explains_bad_text(ax, text):
    float_explorer.draw(ax, text)
    assert "Write for example" in texts(ax)[0] and "Write for example" in alt(ax.figure)
    ax.figure.canvas.draw()


def test_float_explorer_answers_by_slider_and_draws_once():
    widget = float_explorer.float_explorer()
    seen = {widget.picture.value}
    for power in range(-30, 20, 10):
        widget.controls["power"].value = power
        assert widget.controls["number"].value == f"2**{power}"
        seen.add(widget.picture.value)
    widget.controls["number"].value = "nonsense"
    assert "nonsense" in widget.picture.value and len(seen) == 6
    drawn = []
    widget.picture.observe(drawn.append, names="value")
    widget.controls["power"].value = 3
    assert len(drawn) == 1


# ------------------------------------------------------------------------------------------------------------ masters


def test_masters_take_the_steps_of_float32_and_the_weights_are_rounded():
    weights = nn.Parameter(torch.randn(50).bfloat16())
    plain = nn.Parameter(weights.detach().float())
    ours, theirs = Masters([weights], lr=1e-4), torch.optim.AdamW([plain], lr=1e-4)
    for _ in range(20):
        weights.grad = torch.randn(50).bfloat16()
        plain.grad = weights.grad.float()
        ours.step()
        theirs.step()
        assert weights.grad is None and torch.equal(weights, plain.bfloat16())


# ----------------------------------------------------------------------------------------------------- loss scale


@pytest.fixture(scope="module")
def trained():
    """(network, images, labels): a network that has learned some digits."""
    images, labels = Digits(train=True).tensors()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(10):
        for batch in torch.randperm(len(images)).split(64):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, images[:256], labels[:256]


def gradients_of(trained, dtype=None, scale=1.0):
    """The gradients of the hidden layer's outputs, times `scale`, in fp32 or really in `dtype`."""
    (model, images, labels), kept = trained, []

    def keep(module, inputs, output):
        output.retain_grad()
        kept.append(output)

    hook = model[1].register_forward_hook(keep)
    with torch.amp.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = cross_entropy(model(images), labels)
    (scale * loss).backward()
    hook.remove()
    return kept[0].grad


@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_shares_foretell_a_real_fp16_backward(trained, scale):
    true, real = gradients_of(trained), gradients_of(trained, torch.float16, scale)
    assert real.dtype == torch.float16
    foretold = loss_scale.shares(true, scale)
    assert foretold.lost == pytest.approx((real[true != 0] == 0).float().mean().item(), abs=0.03)
    assert foretold.overflow == real.isinf().float().mean().item() == 0
    assert foretold.lost > 0.03 or scale > 1


def test_histogram_counts_every_gradient_once():
    bars = loss_scale.histogram(torch.tensor([1.0, -1.5, 2.0, 0.0, 2.0**-30]))
    assert bars == {-30: 0.25, 0: 0.5, 1: 0.25}


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_a_single_overflow_is_seen(ax):
    gradients = torch.full((10_000,), 1e-3)
    gradients[0] = 1.0
    loss_scale.draw(ax, gradients)
    assert legend(ax) == ["becomes 0: none", "subnormal: none", "kept: 100.0%", "overflows: none"]
    ax.clear()
    loss_scale.draw(ax, gradients, 16)
    assert "overflows: under 0.1%" in legend(ax)
    assert title(ax.figure) == "Figure: Gradients in fp16, scale 2^16 = 65,536" and "under 0.1%" in alt(ax.figure)


def test_the_histogram_is_that_of_the_scaled_gradients(ax, trained):
    gradients = gradients_of(trained)
    loss_scale.draw(ax, gradients, 16)
    shown = {}
    for patch in (patch for patch in ax.patches if hasattr(patch, "get_data")):
        heights, edges, _ = patch.get_data()
        shown |= {int(edge): height / 100 for edge, height in zip(edges, heights, strict=False) if height}
    assert shown == pytest.approx({k + 16: v for k, v in loss_scale.histogram(gradients).items() if k + 16 >= -60})


def test_loss_scale_explorer_draws_what_the_slider_says(ax):
    widget = loss_scale.loss_scale_explorer(torch.full((100,), 1e-3), 4)
    before = widget.picture.value
    assert title(widget.figure()).endswith("scale 2^4 = 16")
    widget.controls["log2_scale"].value = 30
    assert widget.picture.value != before and "overflows: 100.0%" in alt(widget.figure())


# ------------------------------------------------------------------------------------------------------ worker, DDP


def steps(log):
    return [line.split() for line in log.splitlines() if line.startswith("step")]


@pytest.mark.usefixtures("nothing_left")
def test_one_ranks_infinity_is_everybodys():
    logs = launch("mixed_ddp.py", 2, show=False, timeout=60).logs
    for rank, log in enumerate(logs):
        finite = [row[4] for row in steps(log)]
        assert finite == ["True", "True", "False" if rank == 1 else "True", "True"]
        assert [row[7] for row in steps(log)] == ["True", "True", "False", "True"]
        assert [row[-1] for row in steps(log)] == ["65536", "65536", "32768", "32768"]
        assert "output torch.bfloat16  weights torch.float32  sent torch.float32" in log
        assert "weights equal in all ranks: True" in log


# -------------------------------------------------------------------------------------------------------- exercises


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_of_the_hunt_are_well_in_fp32_and_not_in_fp16(network):
    model, finite = NETWORKS[network](), []
    found = FirstOverflow.observe(FirstOverflow.answer, network)["name"]
    assert (found is None) == (network == "nothing overflows")
    for module in model.modules():
        module.register_forward_hook(lambda module, inputs, output: finite.append(output.isfinite().all()))
    model(torch.full((4, 8), -1e-3))
    assert finite and all(finite)


def test_the_solution_stays_below_the_number_of_tries():
    for largest, most in ((1023, 100_000), *((n, 300) for n in range(0, 301, 7))):
        seen = LargestBatch.observe(LargestBatch.answer, (largest, most, math.inf))
        tried = seen["tried"]
        assert seen["outcome"] == f"returned {min(largest, most)}" and not seen["samples still held"], (largest, most)
        assert len(tried) == len(set(tried)) <= 24 and max(tried) <= max(1, 2 * largest), (largest, most)
