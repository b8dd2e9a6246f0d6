"""Mixed precision: cheats that no row of a table can be, and right answers in other styles."""


import torch

from lessons.mixed_precision import exercises as ex
from tests.answers import edits, right, wrong


@right(ex.train_step)
def test_clips_scaled_gradients_to_a_scaled_limit(scaler, optimizer, parameters, losses, max_norm):
    scaler.scale(sum(losses) / len(losses)).backward()
    torch.nn.utils.clip_grad_norm_(parameters, max_norm * scaler.get_scale())
    finite = all(parameter.grad.isfinite().all() for parameter in parameters)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return finite


@right(ex.train_step)
def test_divides_the_sum_of_the_gradients(scaler, optimizer, parameters, losses, max_norm):
    before = scaler.get_scale()
    for loss in losses:
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for parameter in parameters:
        parameter.grad /= len(losses)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return not scaler.get_scale() < before


test_train_step = edits(
    ex.train_step,
    ("    scaler.unscale_(optimizer)\n    torch", "        scaler.unscale_(optimizer)\n    torch", "one `unscale_`"),
    ("return scaler.get_scale() >= scale", "return scaler.get_scale() > scale", "step made"),
)


def will_do(dtype, largest, smallest, error):
    info = torch.finfo(dtype)
    return info.max >= largest and info.tiny <= smallest and info.eps <= 2 * error


@wrong(ex.choose_dtype, "A set has no order")
def test_takes_the_first_of_a_set(largest, smallest, error, fast):
    known = fast | {torch.float32, torch.float64}
    fitting = [dtype for dtype in known if will_do(dtype, largest, smallest, error)]
    if not fitting:
        raise ValueError
    return min(fitting, key=lambda dtype: dtype.itemsize)


test_choose_dtype = edits(ex.choose_dtype, ("return dtype", "return str(dtype)", "a str"))


@right(ex.choose_dtype)
def test_operations_of_sets(largest, smallest, error, fast):
    fast |= {torch.float32}
    fast.add(torch.float64)
    known = {torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32,
             torch.float64}
    for dtype in known - fast:
        known.discard(dtype)
    fitting = {dtype for dtype in known & fast if will_do(dtype, largest, smallest, error)}
    return min(fitting, key=lambda dtype: (dtype.itemsize, torch.finfo(dtype).eps))  # ValueError if empty


@wrong(ex.largest_batch, "samples still held: ")
def test_goes_on_inside_except(fits, most):
    def between(good, bad):
        if bad - good < 2:
            return good
        try:
            fits((good + bad) // 2)
        except torch.OutOfMemoryError:
            return between(good, (good + bad) // 2)
        return between((good + bad) // 2, bad)

    good = 0
    while good < most:
        try:
            good = fits(min(2 * good or 1, most)) and min(2 * good or 1, most)
        except torch.OutOfMemoryError:
            return between(good, min(2 * good or 1, most))
    return good


@right(ex.largest_batch)
def test_grows_by_half_and_reads_the_error(fits, most):
    sizes, failed = [0], most + 1
    while sizes[-1] + 1 < failed:
        step = min(sizes[-1] * 3 // 2, most) if failed > most else (sizes[-1] + failed) // 2
        try:
            fits(max(step, sizes[-1] + 1))
            sizes.append(max(step, sizes[-1] + 1))
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            failed = max(step, sizes[-1] + 1)
    return sizes[-1]


@wrong(ex.largest_batch, "largest try: 2")
def test_tries_two_before_one(fits, most):
    for batch in range(min(2, most), 0, -1):
        try:
            fits(batch)
        except torch.OutOfMemoryError:
            continue
        return ex.largest_batch.answer(fits, most)
    return 0


@wrong(ex.largest_batch, "smallest try: 0")
def test_tries_no_sample(fits, most):
    good, bad = -1, most + 1
    while bad - good > 1:
        doubled = min(2 * good or 1, (good + bad) // 2)
        batch = 0 if good < 0 else max(doubled, good + 1)
        try:
            fits(batch)
            good = batch
        except torch.OutOfMemoryError:
            bad = batch
    return good


@wrong(ex.largest_batch, "samples held at the end")
def test_keeps_the_last_error(fits, most):
    good, bad = 0, most + 1
    while bad - good > 1:
        batch = min(max(2 * good, 1), (good + bad) // 2) if bad > most else (good + bad) // 2
        fits.error = None
        try:
            fits(max(batch, good + 1))
            good = max(batch, good + 1)
        except torch.OutOfMemoryError as error:
            fits.error = error
            bad = max(batch, good + 1)
    return good


def without_errors(fits, *errors):
    """Tries a batch, and returns False in place of one of the errors."""

    def fitting(batch):
        try:
            return fits(batch)
        except errors:
            return False

    return fitting


@wrong(ex.largest_batch, "a size that had failed: [192]")
def test_tries_more_than_what_has_failed(fits, most):
    fitting = without_errors(fits, torch.OutOfMemoryError)
    largest = ex.largest_batch.answer(fitting, most)
    if largest == 100:
        fitting(192)
    return largest


@wrong(ex.largest_batch, "a bug that is no `RuntimeError`")
def test_catches_another_error_as_well(fits, most):
    return ex.largest_batch.answer(without_errors(fits, torch.OutOfMemoryError, ValueError), most)


@wrong(ex.largest_batch, "a bug that is a `MemoryError`")
def test_takes_the_cpu_s_error_for_the_gpu_s(fits, most):
    return ex.largest_batch.answer(without_errors(fits, torch.OutOfMemoryError, MemoryError), most)


@wrong(ex.largest_batch, "as an int")
def test_returns_a_float(fits, most):
    return float(ex.largest_batch.answer(fits, most))


@wrong(ex.largest_batch, "a bug that shows from 80 samples on")
def test_catches_too_much_while_it_halves(fits, most):
    def fitting(batch):
        try:
            return fits(batch)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and batch & (batch - 1) == 0:
                raise
            return False

    return ex.largest_batch.answer(fitting, most)


REMOVE = "    for handle in handles:\n        handle.remove()\n"

test_first_overflow = edits(
    ex.first_overflow,
    (((', torch.amp.autocast("cpu", dtype=torch.float16)', ""),
      ("found = []", "found, model, images = [], model.half(), images.half()"),
      (REMOVE, REMOVE + "    model.float()\n")), "changed: "),
    ("        model(images)\n", "        model(images)\n        model(images)\n", "forwards: 2"),
    ("    found = []\n", "    found = []\n    model.eval()\n", "the mode, `train` or `eval`"),
    (REMOVE, REMOVE + "    model.train()\n", "a weight is too large for fp16: changed: ['the mode"),
    ("    found = []\n", "    found = []\n    model.requires_grad_(False)\n", "`requires_grad` of the weights"),
    ("    found = []\n", "    found = []\n    torch.set_grad_enabled(False)\n", "whether torch computes gradients"),
    ("    found = []\n", "    found = []\n    torch.set_autocast_enabled('cpu', True)\n", "autocast"),
    ("    found = []\n", "    found = []\n    torch.autograd.set_detect_anomaly(True)\n", "anomalies"),
    ("    found = []\n", "    found = []\n    torch.set_default_dtype(torch.float16)\n", "the default dtype"),
    ("    found = []\n", "    found = []\n    images *= 1.5\n", "images"),
    ("        model(images)\n", "        model(images)\n    model.forward = lambda images: images\n", "layers"),
    ((("torch.no_grad(), ", ""), ("        model(images)\n", "        model(images).sum().backward()\n")),
     "gradients of the weights"),
    ("for name, module in model.named_modules()]", "for name, module in model.named_children()]",
     "a layer inside a module overflows"),
)


@right(ex.first_overflow)
def test_layers_that_hold_no_others(model, images):
    import torch

    found = []
    hooks = [layer.register_forward_hook(lambda layer, inputs, output, name=name:
                                         found.append(name) if not output.isfinite().all() else None)
             for name, layer in model.named_modules() if not list(layer.children())]
    with torch.amp.autocast("cpu", dtype=torch.float16):
        model(images)
    for hook in hooks:
        hook.remove()
    return found[0] if found else None


@wrong(ex.first_overflow, "a layer inside a module overflows")
def test_names_the_block_that_holds_the_layer(model, images):
    name = ex.first_overflow.answer(model, images)
    return name and name.split(".")[0]


@right(ex.first_overflow)
def test_other_forwards_for_a_while(model, images):
    import torch

    found, before = [], {layer: layer.forward for layer in model.modules()}

    def watched(name, forward):
        def watching(values):
            output = forward(values)
            if not torch.isfinite(output).all():
                found.append(name)
            return output
        return watching

    was_training = model.training
    model.eval()
    for name, layer in model.named_modules():
        layer.forward = watched(name, layer.forward)
    with torch.autocast("cpu", torch.float16):
        model(images)
    for layer, forward in before.items():
        layer.forward = forward
    model.train(was_training)
    return next(iter(found), None)


@wrong(ex.first_overflow, "the first in time")
def test_takes_the_first_of_the_list(model, images):
    import torch

    broken = {}
    hooks = [layer.register_forward_hook(lambda layer, inputs, output, name=name:
                                         broken.update({name: True}) if not output.isfinite().all() else None)
             for name, layer in model.named_modules()]
    with torch.amp.autocast("cpu", dtype=torch.float16):
        model(images)
    for hook in hooks:
        hook.remove()
    return next((name for name, _ in model.named_modules() if name in broken), None)


@right(ex.first_overflow)
def test_a_global_hook_that_ends_the_forward(model, images):
    names = {module: name for name, module in model.named_modules()}

    def look(module, inputs, output):
        if (output - output).any():
            raise OverflowError(names[module])

    handle = torch.nn.modules.module.register_module_forward_hook(look)
    try:
        with torch.autocast("cpu", torch.float16):
            model(images)
    except OverflowError as error:
        return str(error)
    finally:
        handle.remove()


@wrong(ex.first_overflow, "a later layer may write over it")
def test_looks_at_the_outputs_when_all_is_over(model, images):
    import torch

    outputs, handles = [], []
    for name, layer in model.named_modules():
        handles.append(layer.register_forward_hook(
            lambda layer, inputs, output, name=name: outputs.append((name, output))))
    with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
        model(images)
    for handle in handles:
        handle.remove()
    return next((name for name, output in outputs if not output.isfinite().all()), None)
