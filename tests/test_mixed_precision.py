"""Mixed precision: formats bit by bit, and its explorers."""

import json
import math
import random
import struct
from itertools import product

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn.functional import cross_entropy

from helpers.data import Digits
from helpers.figures import alt, title
from helpers.models import Masters
from lessons.mixed_precision import float_explorer, recorded, scaler_explorer
from lessons.mixed_precision import loss_scale_explorer as loss_scale
from lessons.mixed_precision.formats import FORMATS, decode, encode, parse, rounded
from lessons.mixed_precision.pictures import draw_gradients
from tests.conftest import cells_of

STORED = {name: form for name, form in FORMATS.items() if name != "tf32"}
NUMBERS = [0.0, -0.0, 1.0, -1.5, 0.1, 1 / 3, 65504.0, 65519.0, 65520.0, 1e-8, 2.0**-24, 2.0**-25, 6e-8, 1e39]


@pytest.fixture(autouse=True, scope="module")  # also while the module's other fixtures train
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize("name", STORED)
def test_a_format_agrees_with_torch(name):
    form, info = FORMATS[name], torch.finfo(FORMATS[name].dtype)
    assert (form.bits, 2**-form.fraction_bits) == (info.bits, info.eps)
    assert form.smallest_normal == info.smallest_normal
    smallest = info.smallest_normal * info.eps  # subnormal, with one bit left
    assert encode(smallest, form)[3:] == (smallest, "subnormal")
    assert encode(smallest / 2, form)[3:] == (0, "zero")


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
    for text in ("", "abc", "1,5", "1/0", "__import__('os')"):
        with pytest.raises(ValueError, match=r"Write for example 0\.1"):
            parse(text)


# --------------------------------------------------------------------------------------------- float explorer


def shown(number, frame=None, flip=None):
    """{name: shape} of a frame of the float explorer: by itself the one that it begins with."""
    scene = float_explorer.scene(number, flip)
    return {shape["id"]: shape for shape in scene["frames"][scene["frame"] if frame is None else frame]["shapes"]}


def bits_of(shapes, row):
    """The zeros and ones of a row, from left to right."""
    bits = sorted((shape["x"], shape["text"]) for name, shape in shapes.items() if name.startswith(f"{row}/"))
    return "".join(bit for _, bit in bits)


def columns(shapes, name):
    return shapes[f"{name} becomes"]["text"], shapes[f"{name} error"]["text"]


@pytest.mark.parametrize("text, name, becomes, error", [
    ("0.1", "fp32", "0.100000001", "1.5e-08"), ("0.1", "fp16", "0.0999755859", "2.4e-04"),
    ("0.1", "bf16", "0.100097656", "9.8e-04"), ("65520", "fp32", "65520", "exact"),
    ("65520", "bf16", "65536", "2.4e-04"), ("65520", "fp16", "inf", "overflow"),
    ("1e-8", "fp16", "0", "underflow"), ("1e-7", "fp16", "1.1920929e-07", "1.9e-01, subnormal"),
    ("2**-24", "fp16", "5.96046448e-08", "exact, subnormal"), ("nan", "fp16", "nan", "exact"),
    ("0", "fp8 e4m3", "0", "exact"), ("-inf", "fp16", "-inf", "exact"), ("1e300", "fp32", "inf", "overflow")])
def test_float_explorer_shows(text, name, becomes, error):
    assert columns(shown(text), name) == (becomes, error)
    assert shown("1000")["fp8 e4m3 error"]["text"] == "overflow"  # to 448, or NaN, by torch's version


def test_float_explorer_shows_the_bits():
    for text in ("65520", "-0.1", "nan", "5e-324"):
        shapes = shown(text)
        for row, form in enumerate(FORMATS.values()):
            assert bits_of(shapes, row) == "".join(encode(parse(text), form)[:3])
    assert shapes["tf32 unused"]["text"] == "stored, not used"
    assert shapes["0/1"]["fill"] in float_explorer.COLOURS["exponent"]


@pytest.mark.parametrize("name", FORMATS)
def test_bits_make_the_number_again(name):
    for number in NUMBERS:
        encoded = encode(number, FORMATS[name])
        again = decode("".join(encoded[:3]), FORMATS[name])
        assert again == encoded.value or (math.isnan(again) and math.isnan(encoded.value))


def test_a_bit_is_flipped_in_the_frame_that_is_shown():
    begin = float_explorer.scene("0.1")["frame"]
    before, after = shown("0.1", begin + 1), shown("0.1", flip=["3/15", begin + 1])
    assert before["3/15"]["click"] == {"flip": "3/15"}
    bits = bits_of(before, 3)
    assert bits_of(after, 3) == bits[:15] + "10"[int(bits[15])], "the last bit of 0.2 in fp16"
    scene = float_explorer.scene("0.1", ["3/15", begin + 1])
    assert scene["means"] == {"number": "0.2000732421875", "flip": None}
    assert scene["frames"][scene["frame"]]["title"] == "0.2000732421875"
    assert columns(after, "fp16") == ("0.200073242", "exact")
    assert float_explorer.scene("1.0", ["0/0", float_explorer.scene("1.0")["frame"]])["means"]["number"] == "-1"
    assert float_explorer.scene("inf", ["3/1", 0])["means"]["number"] == "1"


def test_each_frame_doubles_the_number():
    scene = float_explorer.scene("0.1")
    frames, begin = scene["frames"], scene["frame"]
    assert frames[begin]["title"] == "0.1" and frames[begin + 3]["title"] == "0.1 × 2^3 = 0.8"
    assert columns(shown("0.1", 0), "fp16")[1] == "underflow" and "fp16: underflow" in frames[0]["note"]
    assert columns(shown("0.1", -1), "fp16")[1] == "overflow" and "fp16: overflow" in frames[-1]["note"]
    assert "fp16" not in frames[begin]["note"], "a question is asked here"
    places = shown("0.1")["mark"]["drag"]
    assert places[0] == "moment" and len(places[1]) == len(frames)
    for number, frame in enumerate(frames):
        mark = next(shape for shape in frame["shapes"] if shape["id"] == "mark")
        assert places[1][number] == pytest.approx([mark["x"], mark["y"]])


@pytest.mark.parametrize("text, frames", [("0.1", 45), ("2049", 18), ("1e-8", 11), ("3e38", 1), ("-5e-324", 1),
                                          ("0", 1), ("inf", 1), ("nan", 1)])
def test_a_number_is_doubled_as_long_as_it_lies_on_the_ruler(text, frames):
    scene = float_explorer.scene(text)
    assert len(scene["frames"]) == frames and scene["frames"][scene["frame"]]["title"] == text
    assert ("mark" in shown(text)) == (frames > 1)


def test_the_ruler_says_how_far_formats_reach():
    for names, (least, normal, largest) in float_explorer.REACHES.items():
        form = FORMATS[names.split(", ")[-1]]
        info = torch.finfo(form.dtype)
        assert normal == math.log2(info.smallest_normal) and least == normal - form.fraction_bits
        assert largest == pytest.approx(math.log2(info.max), abs=0.05)


def test_float_explorer_explains_bad_text():
    [frame] = float_explorer.scene("$x$ \\frac{")["frames"]
    assert "Write for example" in frame["note"] and not frame["shapes"]


def test_what_the_float_explorer_stores_and_asks():
    stage = float_explorer.float_explorer("0.1")
    assert [one["words"] for one in stage.story["presets"]] == ["2049", "65520", "1e-8"]
    assert len(stage.story["scenes"]) == 4 and len(json.dumps(stage.story)) < 95_000
    stage.asked = {"setting": ["0.1", ["3/0", float_explorer.scene("0.1")["frame"]]], "number": 1}
    assert stage.answer["scene"]["means"] == ["-0.0999755859375", None]
    assert columns(shown("2049"), "tf32")[0] == "2048" and columns(shown("2049"), "fp32")[1] == "exact"
    kept = [name for name in FORMATS if "underflow" not in columns(shown("1e-8"), name)[1]]
    assert kept == ["fp32", "tf32", "bf16"]


# ------------------------------------------------------------------------------------------------- loss scale


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


def test_a_single_overflow_is_seen():
    gradients = torch.full((10_000,), 1e-3)
    gradients[0] = 1.0
    assert loss_scale.in_words(gradients, 0) == {"becomes 0": "none", "subnormal": "none", "kept": "100.0%",
                                                 "overflows": "none"}
    (frame,) = loss_scale.scene(gradients, 16)["frames"]
    shapes = {shape["id"]: shape for shape in frame["shapes"]}
    assert shapes["share overflows"]["text"] == "overflows\nunder 0.1%" and "under 0.1%" in frame["note"]
    drawn = Figure().subplots()
    draw_gradients(drawn, gradients, 16)
    assert title(drawn.figure) == f"Figure: {frame['title']}" == "Figure: Gradients in fp16, scale 2^16 = 65,536"
    assert alt(drawn.figure) == frame["alt"] and "under 0.1%" in frame["alt"]


def bars_of(gradients, log2_scale):
    """{power: the share that a bar shows}, and the powers whose bars overflow by their colour."""
    shapes = {shape["id"]: shape for shape in loss_scale.scene(gradients, log2_scale)["frames"][0]["shapes"]}
    heights, overflowing = {}, set()
    wide = (shapes["chart axis"]["points"][2][0] - 50) / (loss_scale.HIGH - loss_scale.LOW)
    for name, bar in shapes.items():
        if name.startswith("bar "):
            power = loss_scale.LOW + round((bar["x"] - 50) / wide)
            heights[power] = bar["h"]
            if bar["fill"] == loss_scale.ZONES["overflows"][2]:
                overflowing.add(power)
    return heights, overflowing, shapes["grip"]


def test_the_explorer_shows_the_histogram_of_the_scaled_gradients(trained):
    gradients = gradients_of(trained)
    heights, _, _ = bars_of(gradients, 16)
    shown = {power: high / sum(heights.values()) for power, high in heights.items()}
    counted = loss_scale.histogram(gradients)
    assert shown == pytest.approx({k + 16: v for k, v in counted.items()}, rel=1e-3)
    assert loss_scale.histogram(torch.tensor([1.0, -1.5, 2.0, 0.0, 2.0**-30])) == {-30: 0.25, 0: 0.5, 1: 0.25}


def test_bars_change_with_the_scale_and_their_place_is_the_scale():
    gradients = torch.tensor([2.0**-30, 2.0**-10, 2.0**-10])
    assert [sorted(bars_of(gradients, scale)[0]) for scale in (0, 26)] == [[-30, -10], [-4, 16]]
    assert bars_of(gradients, 25)[1] == set() and bars_of(gradients, 26)[1] == {16}
    control, places = bars_of(gradients, 7)[2]["drag"]
    assert control == "log2_scale" and places[7] == [bars_of(gradients, 7)[2][key] for key in ("x", "y")]
    stage = loss_scale.loss_scale_explorer(gradients, 4)
    assert len(stage.story["scenes"]) == 41, "it plays without a kernel"
    assert [preset["setting"] for preset in stage.story["presets"]] == [[0], [16], [40]]


# ------------------------------------------------------------------------------------------------ scaler's life


def real_life(gradients, first_scale, growth_interval, dtype=torch.float16, enabled=True):
    """What `life` tells, by torch's scaler: [(scale, made, growth tracker, next scale)]; and of each step, whether
    the weights are finite after it.

    Gradients are rounded to `dtype` as they come, as under autocast on a GPU.
    """
    weights = nn.Parameter(torch.zeros(3))
    weights.register_hook(lambda gradient: gradient.to(dtype).float())
    optimizer = torch.optim.SGD([weights], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=first_scale, growth_interval=growth_interval, enabled=enabled)
    made = []
    optimizer.register_step_post_hook(lambda *_: made.append(True))
    told, finite = [], []
    for gradient in gradients:
        made.clear()
        scale = scaler.get_scale()
        optimizer.zero_grad()
        loss = weights @ torch.tensor([gradient / 3, gradient, -gradient / 2])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        told.append((scale, bool(made), scaler._get_growth_tracker(), scaler.get_scale()))
        finite.append(weights.isfinite().all().item())
    return told, finite


def as_told(steps):
    return [(step.scale, step.made, step.growth_tracker, step.next_scale) for step in steps]


def test_a_scale_lives_as_that_of_torch_does_in_what_can_be_set():
    dice = random.Random(56)
    everything = list(product(scaler_explorer.INTERVALS, scaler_explorer.FIRST_SCALES, scaler_explorer.OUTLIERS))
    skipped = grown = 0
    for interval, power, outlier in dice.sample(everything, 70):
        at = dice.choice(scaler_explorer.STEPS)
        gradients = scaler_explorer.with_outlier(scaler_explorer.GRADIENTS, outlier, at)
        steps = scaler_explorer.life(gradients, 2.0**power, interval)
        assert as_told(steps) == real_life(gradients, 2.0**power, interval)[0], (interval, power, outlier, at)
        skipped += sum(not step.made for step in steps)
        grown += sum(step.next_scale > step.scale for step in steps)
    assert skipped > 100 and grown > 100


def test_a_scale_lives_as_that_of_torch_does_with_any_gradients():
    dice = random.Random(7)
    special = [math.inf, math.nan, 0.0, 65504.0, 65519.0, 65520.0, 65536.0]
    for _ in range(25):
        scale, interval = 2.0 ** dice.randint(-8, 30), dice.randint(1, 12)
        gradients = [dice.choice(special) / scale if dice.random() < 0.2 else 10 ** dice.uniform(-6, 3)
                     for _ in range(60)]
        gradients = torch.tensor(gradients).tolist()  # as fp32 has them
        assert as_told(scaler_explorer.life(gradients, scale, interval)) == real_life(gradients, scale, interval)[0]


def test_torch_s_own_scaler_is_the_explorer_s_by_default():
    scaler = torch.amp.GradScaler("cpu")
    controls = scaler_explorer.scaler_explorer().controls
    assert scaler.get_scale() == 2.0 ** controls["log2_first_scale"]["value"]
    assert scaler.get_growth_interval() == scaler_explorer.DEFAULT_INTERVAL
    assert scaler.get_growth_factor() == scaler_explorer.GROWTH_FACTOR
    assert scaler.get_backoff_factor() == scaler_explorer.BACKOFF_FACTOR
    assert torch.tensor(65519.996).half() == scaler_explorer.LARGEST
    assert torch.tensor(scaler_explorer.OVERFLOWS).half().isinf()


@pytest.mark.parametrize("outlier", scaler_explorer.OUTLIERS)
def test_bf16_loses_its_weights_as_the_explorer_says(outlier):
    for at in scaler_explorer.STEPS[::5]:
        gradients = scaler_explorer.with_outlier(scaler_explorer.GRADIENTS, outlier, at)
        _, finite = real_life(gradients, 1.0, 2000, torch.bfloat16, enabled=False)
        lost = scaler_explorer.lost_without_scaler(gradients)
        assert finite == [lost is None or step < lost for step in scaler_explorer.STEPS]
        _, finite = real_life(gradients, 2.0**16, 2000)
        assert all(finite), "the scaler keeps them"


def small_training():
    """A network, its optimizer, and batches of images and labels for the steps of the explorer, and more."""
    images, labels = Digits(train=True).tensors()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    batches = list(zip(images.split(64), labels.split(64), strict=True))[:21]
    return model, torch.optim.SGD(model.parameters(), lr=0.5), batches * 2


def test_the_explorer_s_gradients_are_those_of_a_training():
    model, optimizer, batches = small_training()
    largest = []
    for images, labels in batches[:len(scaler_explorer.GRADIENTS)]:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        largest.append(max(weights.grad.abs().max().item() for weights in model.parameters()))
        optimizer.step()
    assert largest == pytest.approx(scaler_explorer.GRADIENTS, rel=0.05)


@pytest.mark.parametrize("interval", [2, 4, 8])
def test_until_a_step_is_skipped_a_training_in_fp16_lives_as_its_gradients_foretell(interval):
    """From then on it is another training, since a step is missing."""
    model, optimizer, batches = small_training()
    scaler = torch.amp.GradScaler("cpu", growth_interval=interval)
    scales = []
    for images, labels in batches:
        scales.append(scaler.get_scale())
        with torch.amp.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    foretold = scaler_explorer.life(scaler_explorer.GRADIENTS, 2.0**16, interval)
    skipped = [step for step, one in enumerate(foretold) if not one.made]
    until = skipped[0] + 1 if skipped else len(foretold) - 1
    assert scales[:until + 1] == [step.scale for step in foretold[:until + 1]]


def test_what_the_scaler_explorer_shows_is_the_scale_s_life():
    setting = {"growth_interval": 4, "log2_first_scale": 24, "outlier": "inf", "at": 9}
    gradients = scaler_explorer.with_outlier(scaler_explorer.GRADIENTS, "inf", 9)
    told, _ = real_life(gradients, 2.0**24, 4)
    scene = scaler_explorer.scene(**setting)
    tracker, scale = 0, 2.0**24
    for done, frame in enumerate(scene["frames"]):
        shapes = {shape["id"]: shape for shape in frame["shapes"]}
        made = [step_made for _, step_made, _, _ in told[:done]]
        if done:
            _, _, tracker, scale = told[done - 1]
            assert f"Step {done - 1}: {'made' if made[-1] else 'skipped'}" in frame["title"]
            assert f"_growth_tracker = {tracker}." in frame["note"]
        assert (shapes["made"]["text"], shapes["skipped"]["text"]) == (f"made {sum(made)}",
                                                                       f"skipped {done - sum(made)}")
        assert shapes["scale"]["text"] == f"scale 2^{math.log2(scale):.0f} = {scale:,.10g}"
        assert shapes["growth"]["text"] == f"_growth_tracker {tracker} of 4"
        limit = shapes["limit"]["y"] + 1
        for step in range(done):
            dotted = shapes[f"bar {step}"].get("hatch") == shapes[f"fp16 {step}"].get("hatch") == "..."
            assert dotted == (not made[step])
            assert made[step] == (shapes[f"bar {step}"]["y"] > limit - 0.01), "a bar that overflows is over the line"
        assert all(shapes[f"bar {step}"]["opacity"] < 1 for step in range(done, len(told)))


def test_an_outlier_is_clicked_and_dragged():
    def shapes_of(frame=0, **setting):
        setting = {"growth_interval": 4, "log2_first_scale": 16, "outlier": "none", "at": 6} | setting
        return {shape["id"]: shape for shape in scaler_explorer.scene(**setting)["frames"][frame]["shapes"]}

    shapes = shapes_of()
    assert shapes["column 9"]["click"] == {"outlier": "× 1000", "at": 9} and "outlier" not in shapes
    shapes = shapes_of(7, outlier="× 100", at=6)
    assert shapes["column 9"]["click"] == {"outlier": "× 100", "at": 9}
    assert shapes["column 6"]["click"] == {"outlier": "none"}
    control, places = shapes["outlier"]["drag"]
    assert control == "outlier" and [shapes["outlier"]["x"], shapes["outlier"]["y"]] == places[1]
    assert places[0][1] > places[1][1] > places[2][1] > places[3][1]
    limit = shapes["limit"]["y"] + 1
    assert shapes["bar 6"]["y"] < limit and shapes["outlier"]["x"] >= shapes["bar 6"]["x"] + shapes["bar 6"]["w"], (
        "the mark leaves the end of its bar, which is a little over the line, to be seen")
    for at, power in product(scaler_explorer.STEPS, (8, 16, 24)):
        mark = shapes_of(outlier="inf", at=at, log2_first_scale=power)["outlier"]
        assert len({(x, y) for x, y in mark["drag"][1]}) == len(scaler_explorer.OUTLIERS), "each can be dragged to"
        assert all(0 <= x <= scaler_explorer.RIGHT - mark["w"] for x, _ in mark["drag"][1])
    control, places = shapes["first scale"]["drag"]
    assert control == "log2_first_scale" and [shapes["first scale"][key] for key in "xy"] == places[4]


# ------------------------------------------------------------------------------------- what the lesson prints

CELLS = cells_of("07_mixed_precision")


@pytest.fixture(scope="module")
def lesson():
    """The names of the lesson, after the cells that train, collect gradients, and define its functions."""
    names = {"torch": torch, "nn": nn, "cross_entropy": cross_entropy, "Digits": Digits}
    for key in ("images-labels-digits-train-true-tens", "model-network-optimizer-torch-optim",
                "from-helpers-widgets-loss-scale-impo", "logits-model-images-256-logits-retai",
                "def-train-dtype-none-scaled-false-di", "def-run-order-optimizer-torch-optim"):
        exec(CELLS[key].source, names)
    names["gradients"] = names["activation_gradients"](names["model"])
    exec(CELLS["lost-in-fp8"].source, names)
    return names


def test_gradients_of_the_lesson_are_as_small_as_it_says(lesson, monkeypatch):
    gradients = lesson["gradients"]
    before, after = (loss_scale.shares(gradients, scale) for scale in (1.0, 2.0**16))
    assert loss_scale.shares(lesson["fresh"]).lost < 0.001 and lesson["accuracy"] > 0.85
    assert before.lost > 0.25 and after.lost < before.lost / 5 and after.overflow == 0
    assert not ((gradients.bfloat16() == 0) & (gradients != 0)).any()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        one_scale, blocks = (lesson["lost_in_fp8"](gradients.view(*shape), dtype) for shape in ((1, -1), (-1, 32)))
        assert blocks < 0.7 * one_scale
        assert one_scale > 0.2 if dtype is torch.float8_e4m3fn else one_scale < 0.1, "e5m2 reaches farther"
    assert lesson["difference"] < 1e-6 * lesson["gradient"].abs().max()
    for name in ("images", "labels"):
        monkeypatch.setitem(lesson, name, lesson[name][:64])
    first = lesson["activation_gradients"](lesson["network"](32))
    assert loss_scale.shares(first, 1e-5).lost == pytest.approx(0.97, abs=0.005), "97 in 100, says a prediction"


def test_only_fp16_without_a_scale_does_not_learn_from_a_small_loss(lesson):
    train = lesson["train"]
    losses = {dtype: train(dtype, dtype is torch.float16, 100_000) for dtype in (None, torch.float16, torch.bfloat16)}
    assert max(losses.values()) < 1 and max(losses.values()) - min(losses.values()) < 0.05
    assert train(torch.float16, False, 100_000) > 2 and train(torch.float16) < 1


def test_clipping_before_unscale_learns_nothing(lesson):
    assert lesson["run"]("scale+backward step update") < 1
    assert lesson["run"]("scale+backward clip unscale_ step update") > 2
    assert lesson["run"]("scale+backward clip unscale_ step update", torch.optim.Adam, 4e-3) < 1, "Adam hides it"


def test_autocast_of_a_gpu_refuses_the_loss_that_the_lesson_names():
    names = {"torch": torch}
    exec(CELLS["x-matrix-target-torch-rand-4-4-torch"].source, names)
    loss = nn.functional
    try:
        with pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
            names["under_autocast"](lambda x, half: loss.binary_cross_entropy(x, x), "cuda")
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
    wanted = names["under_autocast"](lambda x, half: loss.binary_cross_entropy_with_logits(half, x), "cuda")
    assert wanted == "float32"


def test_the_later_of_two_switches_for_tf32_wins():
    products = torch.backends.cuda.matmul
    try:
        products.fp32_precision = "ieee"
        torch.set_float32_matmul_precision("high")
        assert products.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")
        products.fp32_precision = "none"


@pytest.mark.parametrize("masters", [False, True])
def test_bf16_weights_move_only_with_masters(lesson, masters):
    names = {**lesson, "torch": torch}
    exec(CELLS["def-unmoved-model-steps-800-train-re"].source, names)
    model = names["network"](32).bfloat16()
    optimizer = (Masters if masters else torch.optim.AdamW)(model.parameters(), lr=1e-4)
    _, moved = names["trained"](model, optimizer, steps=50)
    assert (moved > 0.001) == masters and (masters or moved == 0)


def test_the_lesson_does_not_hold_the_order_of_its_exercise():
    code = "\n".join(cell.source for cell in CELLS.values() if cell.cell_type == "code")
    assert "unscale_ clip" not in code and code.count("scaler.unscale_(optimizer)") == 1


def test_the_table_of_data_sheets_agrees_with_the_one_that_records_are_compared_with():
    lines = [line for line in CELLS["data-sheets"].source.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    h100 = {row[1]: row[rows[0].index("H100")] for row in rows}
    kinds = {"fp32": "float32", "TF32": "TF32", "bf16, fp16": "bfloat16", "fp8": "float8"}
    assert {name: h100[name] for name in kinds} == {name: f"{recorded.DATA_SHEET[kind]:,}"
                                                    for name, kind in kinds.items()}


def test_two_measurements_of_one_product_differ_as_the_lesson_says():
    products, shapes = (each.recorded("H200")["result"] for each in (recorded.products, recorded.shapes))
    above, below = products["TFLOP/s"]["bfloat16"]["4096"], shapes["bfloat16"]["4096"]
    text = CELLS["does-the-shape-matter"].source
    assert f"reached {above:.0f} TFLOP/s in the record above" in text and f"and {below:.0f} below" in text


def test_a_disabled_scaler_still_makes_the_optimizer_s_step():
    weight = nn.Parameter(torch.ones(()))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(weight.sum()).backward()
    scaler.step(torch.optim.SGD([weight], lr=0.5))
    assert weight.grad == 1 and weight == 0.5


# ---------------------------------------------------------------------------------------- experiments on a GPU


def test_what_is_said_of_products_follows_the_numbers():
    rows = {"float32": {"512": 20, "8192": 50}, "bfloat16": {"512": 40, "8192": 700}, "float8": {"refused": "No: old"}}
    result = {"card": "NVIDIA H200", "checked": 2048, "µs to launch": 6.0, "TFLOP/s": rows,
              "error": {"float32": 2e-7, "bfloat16": 2.8e-3, "float8": {"refused": "No: old"}}}
    told = recorded.products_in_words(result)
    assert "**700 TFLOP/s**" in told and "| bfloat16 | 700 | 14.0 | 989, reached 71% | 2.8e-03 |" in told
    assert "takes 6.0 µs to launch" in told and "not get beyond about 45 TFLOP/s" in told
    assert "the events counted Python's time, too" in told and "float8 was refused: `No: old`" in told
    told = recorded.products_in_words({**result, "card": "NVIDIA L4", "GPU alone": True})
    assert "in its queue, reaches 40 TFLOP/s" in told and "Python's time" not in told
    assert "not compared" in told and "data sheet is" not in told


def test_what_is_said_of_shapes_follows_the_numbers():
    result = {"bfloat16": {"4096": 700, "4097": 210, "4104": 600}, "TF32": {"4096": 400, "4097": 300, "4104": 410}}
    told = recorded.shapes_in_words(result)
    assert "**30%**" in told and "TF32, 75%" in told and "each size whose rows" in told
    assert "| 4,097 | 2 bytes | 210 | 300 |" in told
    assert "do not tell" in recorded.shapes_in_words(result | {"bfloat16": {"4096": 700, "4097": 650, "4104": 600}})


def test_what_is_said_of_training_follows_the_numbers():
    row = {"ms": 80.0, "peak MiB": 9000, "loss": 7.61, "skipped": 0}
    result = {"float32": row, "TF32": {"refused": "No: old"},
              "autocast bfloat16": row | {"ms": 10.0, "peak MiB": 6000, "loss": 7.62},
              "autocast float16, scaler": row | {"ms": 11.0, "loss": 7.63, "skipped": 2},
              "autocast bfloat16, other start": row | {"loss": 7.65}}
    told = recorded.gpt_in_words(result)
    assert "bfloat16 is the fastest: it makes **8.0 steps** in the time of one in float32, and needs 67%" in told
    assert "at most 0.0200 apart" in told and "0.0300, which is more" in told and "| TF32 | No: old |" in told
    slow = {name: row if name == "float32" else other | {"ms": 90.0} for name, other in result.items()}
    assert recorded.gpt_in_words(slow | {"TF32": row}).startswith("**float32** is the fastest: no step is")
    layouts = {f"{name}, {layout}": row | {"ms": ms} for name in ("float32", "TF32")
               for layout, ms in (("channels first", 80.0), ("channels_last", 60.0))}
    told = recorded.resnet_in_words(layouts | {"TF32, channels_last": {"refused": "No: old"}})
    assert "**1.3 steps**" in told and "shorter): 0.75× in float32." in told


def test_a_training_without_a_loss_is_not_the_fastest():
    row = {"ms": 80.0, "peak MiB": 9000, "loss": 4.05, "skipped": 0, "first scale": 1.0}
    broken = row | {"ms": 20.0, "loss": math.nan, "skipped": 14}
    rows = {"float32, channels first": row, "float32, channels_last": row | {"ms": 40.0},
            "autocast float16, scaler, channels first": broken, "autocast float16, scaler, channels_last": broken}
    told = recorded.resnet_in_words(rows)
    assert told.startswith("Of the trainings whose loss is a number, float32, channels_last is the fastest: it makes")
    assert "In the others, the loss is not a number: autocast float16" in told and "skipped 14 steps" in told
    assert "fused" not in told and "shorter): 0.50× in float32." in told
    old = {name: {key: value for key, value in row.items() if key != "first scale"} for name, row in rows.items()}
    assert "`fused=True`" in recorded.resnet_in_words(old)
    gpt = {"float32": row, "autocast bfloat16": broken, recorded.OTHER_START: row}
    told = recorded.gpt_in_words(gpt)
    assert told.startswith("Of the trainings whose loss is a number, **float32** is") and "apart" not in told


def test_a_figure_of_two_pictures_has_a_title_and_its_values():
    result = {"batches": {str(2**n): {"ms": 5.0, "peak MiB": 100 * n} for n in range(3)}}
    recorded.batch_sizes_drawn(result)
    assert title(plt.gcf()) == "Figure: Speed and memory by batch"
    assert "4: 800 samples/s, peak 200 MiB" in alt(plt.gcf())


def test_what_is_said_of_batches_follows_the_numbers():
    row = {"peak MiB": 3000, "loss": 7.6, "skipped": 0}
    fit = {"1": row | {"ms": 5.0}, "2": row | {"ms": 5.0, "peak MiB": 3500}, "4": row | {"ms": 9.5, "peak MiB": 4500}}
    result = {"GiB allowed": 40, "batches": fit | {"8": {"refused": "OutOfMemoryError: 1 GiB"}}}
    told = recorded.batch_sizes_in_words(result)
    assert "From a batch of **2** on, the GPU trains at least 90% of the 421 samples" in told
    assert "takes 500 MiB. A batch of 8 does not fit into the 40.0 GiB" in told and "`OutOfMemoryError: 1 GiB`" in told
