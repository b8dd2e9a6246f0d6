"""Mixed precision: cheats that no row of a table can be, and right answers in other styles."""


import torch

from lessons.mixed_precision import exercises as ex
from tests.answers import edits, right, wrong


@right(ex.train_step)
def test_clips_scaled_gradients_to_a_scaled_limit(scaler, optimizer, parameters, loss, max_norm):
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(parameters, max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


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


REMOVE = "    for handle in handles:\n        handle.remove()\n"

test_first_overflow = edits(
    ex.first_overflow,
    (((', torch.amp.autocast("cpu", dtype=torch.float16)', ""),
      ("found = []", "found, model, images = [], model.half(), images.half()"),
      (REMOVE, REMOVE + "    model.float()\n")), "changed in the model"),
    ("        model(images)\n", "        model(images)\n        model(images)\n", "forwards: 2"),
)


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
