"""Mixed precision: cheats that no row of a table can be, and right answers in other styles."""

import copy

import numpy
import torch

from lessons.mixed_precision import exercises as ex
from tests.answers import edits, right, wrong

BACKWARD = "    scaler.scale(loss).backward()\n"

test_train_step = edits(
    ex.train_step,
    (BACKWARD, BACKWARD.replace("()\n", "(retain_graph=True)\n") + "    optimizer.zero_grad()\n" + BACKWARD,
     "['gradients that came'] is 48"),
    ("    scaler.unscale_", "    for one in parameters:\n        one.grad.nan_to_num_(0, 0, 0)\n    scaler.unscale_",
     "call`['3, a gradient that overflows once it is scaled"),
)


@right(ex.train_step)
def test_clips_scaled_gradients_to_a_scaled_limit(scaler, optimizer, parameters, loss, max_norm):
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(parameters, max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@right(ex.train_step)
def test_clips_by_hand(scaler, optimizer, parameters, loss, max_norm):
    for parameter, gradient in zip(parameters, torch.autograd.grad(scaler.scale(loss), parameters), strict=True):
        parameter.grad = gradient
    scaler.unscale_(optimizer)
    norm = sum(parameter.grad.double().pow(2).sum().item() for parameter in parameters)**0.5
    if norm > max_norm:
        for parameter in parameters:
            parameter.grad = parameter.grad * (max_norm / norm)
    scaler.step(optimizer)
    scaler.update()


def will_do(dtype, largest, smallest, error):
    info = torch.finfo(dtype)
    return info.max >= largest and info.tiny <= smallest and info.eps <= 2 * error


@wrong(ex.choose_dtype, "A set has no order")
def test_takes_the_first_of_a_set(largest, smallest, error, fast):
    fitting = [dtype for dtype in fast | {torch.float32, torch.float64} if will_do(dtype, largest, smallest, error)]
    if not fitting:
        raise ValueError
    return min(fitting, key=lambda dtype: dtype.itemsize)


@right(ex.choose_dtype)
def test_operations_of_sets(largest, smallest, error, fast):
    fast |= {torch.float32}
    fast.add(torch.float64)
    known = {torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64}
    for dtype in known - fast:
        known.discard(dtype)
    fitting = {dtype for dtype in known & fast if will_do(dtype, largest, smallest, error)}
    return min(fitting, key=lambda dtype: (dtype.itemsize, torch.finfo(dtype).eps))  # which raises ValueError if empty


@right(ex.choose_dtype)
def test_a_table_in_order(largest, smallest, error, fast):
    for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"):
        dtype = getattr(torch, name)
        if dtype in fast.union({torch.float32}, [torch.float64]) and will_do(dtype, largest, smallest, error):
            return dtype
    raise ValueError(f"none of {sorted(map(str, fast))}")


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


@right(ex.largest_batch)
def test_bisects(fits, most):
    import bisect

    def too_large(batch):
        try:
            return not fits(batch)
        except torch.OutOfMemoryError:
            return True

    failed = next((size for size in (2**power for power in range(most.bit_length())) if too_large(size)), None)
    good = failed // 2 if failed else 2**(most.bit_length() - 1)
    return numpy.int64(bisect.bisect_left(range(failed or most + 1), True, lo=good + 1, key=too_large) - 1)


REMOVE = "    for handle in handles:\n        handle.remove()\n"

test_first_overflow = edits(
    ex.first_overflow,
    (REMOVE, "    for module in model.modules():\n        module._forward_hooks.clear()\n", "hooks: 2, now 1"),
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


@right(ex.first_overflow)
def test_a_copy_with_patched_calls(model, images):
    found, twin = [], copy.deepcopy(model)
    for name, module in twin.named_modules():
        def forward(values, name=name, forward=module.forward):
            output = forward(values)
            found.extend([name] * (not output.abs().amax() < torch.inf))
            return output
        module.forward = forward
    with torch.inference_mode(), torch.amp.autocast("cpu", dtype=torch.float16):
        twin(images)
    return next(iter(found), None)


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
