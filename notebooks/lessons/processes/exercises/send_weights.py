"""A child sends its weights through a queue, and must not end before its parent has them."""

import io
import queue
import textwrap
import threading
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from unittest import mock

import torch

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each, same
from lessons.processes.exercises.trained_model import trained, values
from lessons.processes.exercises.trouble import without


class Queue(queue.SimpleQueue):
    """Pickles what goes through it, as a queue of processes does, but at once. It keeps the error."""

    trouble = "nothing arrived"

    def put(self, obj, block=True, timeout=None):
        try:
            super().put(bytes(ForkingPickler.dumps(obj)))
        except Exception as error:
            self.trouble = f"nothing arrived; what you put could not be sent: {type(error).__name__}: {error}"

    def empty(self):
        """The parent takes a message at once. It fetches the memory of its tensors later."""
        return True

    def close(self):
        """All has been sent."""

    put_nowait = put
    join_thread = close


class Done(threading.Event):
    """The parent's event. The parent reads as soon as the child waits for a minute; no clock has a say."""

    def __init__(self, messages):
        super().__init__()
        self.messages = messages
        self.waited = 0  # seconds that the child would have waited
        self.seen = None  # what the parent has read

    def wait(self, timeout=None):
        if not super().is_set():
            self.waited += 60 if timeout is None else max(timeout, 0.1)  # asking again and again is waiting
            if self.waited >= 60:
                self.seen = read(self.messages, "while your function waited")
                self.set()
        return super().is_set()

    def is_set(self):
        return self.wait(1)


def read(messages, when, child_has_ended=False):
    """What the parent gets, if it reads now and loads that into a model of zeros."""
    model = trained()
    for tensor in model.state_dict().values():
        tensor.zero_()
    received = None
    trouble = ""
    try:
        sent = messages.get_nowait()
        if child_has_ended and b"rebuild_storage_filename" in sent:
            raise FileNotFoundError  # the sharing strategy is "file_system", and the child's files are gone
        received = ForkingPickler.loads(sent)
        if isinstance(received, bytes | bytearray):
            received = torch.load(io.BytesIO(received), weights_only=True)
        model.load_state_dict(received)
    except queue.Empty:
        trouble = messages.trouble
    except OSError as error:
        trouble = f"the tensors' memory could not be fetched: `{type(error).__name__}`"
    except Exception as error:
        words = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
        trouble = f"what arrived first (`{type(received).__name__}`) could not be loaded: {words}"
    if trouble:
        trouble = f"the parent read {when}: {trouble}"
    return {"trouble": trouble, "weights": values(model)}


class SendWeights(Exercise):
    title = "Weights through a queue"
    task = ("You are the child, and `model` is trained for now. Send all of its weights through `queue` as they "
            "are now: as a dict that `load_state_dict` takes, or as the bytes that `torch.save` makes of it. "
            "Then call `train_on()` once: it trains `model` further, in place, and the child keeps what it learns. "
            "Do not wait for the parent before that: it is busy, and nobody knows when it reads. The parent sets "
            "the event `done` after it has loaded the weights, and `done.wait()` waits for that. (A time limit of "
            "a minute or more is fine. A shorter one, or a `sleep`, is a guess.)")
    hints = (
        "`model.state_dict()` holds all that `load_state_dict` needs, also buffers such as BatchNorm's "
        "averages. Its tensors are the model's own memory.",
        "A tensor in a queue is only a note that says where to fetch its memory. What does that memory hold when "
        "the parent fetches it, and which process has to be there?",
    )
    explanation = ("`clone()` keeps the weights of now, and the child stays until the parent has them. Bytes are "
                   "right, too: `torch.save` into an `io.BytesIO()`, and put its `getvalue()`. Bytes are a copy, "
                   "and need nobody, so the child may then leave at once.")
    why = ("the tensor itself did not go through the queue: the parent fetched its memory from the child. A "
           "process that puts tensors into a queue has to stay until they are fetched, and what it writes later is "
           "seen by both. This is true of a DataLoader's workers as well.")

    timeout = 10

    def answer(model, queue, done, train_on):
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}     #: copy
        queue.put(weights)                                                                  #: put
        train_on()                                                                          #: train
        done.wait()                                                                         #: wait

    def observe(send_weights, case):
        messages = Queue()
        done = Done(messages)
        model = trained()
        parent_had_read = []  # at each call of `train_on`
        sent = []
        later = []  # the weights after it

        def train_on():
            parent_had_read.append(threading.Event.is_set(done))
            sent.append(not queue.SimpleQueue.empty(messages))
            for tensor in model.state_dict().values():
                tensor += 1
            later.append(values(model))

        with mock.patch("time.sleep"):  # no `sleep` is long enough
            send_weights(model, messages, done, train_on)
        if done.seen is None:
            resource_sharer.stop()  # as when a process ends: nobody hands out its tensors' memory any more
            when = f"when your function had returned, having waited {done.waited:g} s for `done`"
            done.seen = read(messages, when, child_has_ended=True)
        return {
            **done.seen,
            "parent had read": parent_had_read,
            "later weights": later,
            "in the child": values(model),
            # No rule asks for it. It tells who trains on too early from who sends what is still trained.
            "sent before it trained on": sent,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    def not_the_weights_of_now(mine, wanted, case):
        for name, right in wanted["weights"].items():
            received = mine["weights"][name]
            if received != right and any(received == weights[name] for weights in mine["later weights"]):
                return (f"the parent loaded a `{name}` as `train_on()` has left it",
                        "the weights as they were when your function was called")

    def not_trained_on_once(mine, wanted, case):
        calls = mine["parent had read"]
        if len(calls) != 1:
            return f"`train_on` was called {len(calls)} times", "once"
        if calls[0]:
            return "`train_on` was called after the parent had loaded the weights", "at once: the parent may come late"
        if mine["in the child"] != mine["later weights"][0]:
            return "in the end `model` had other weights than `train_on()` had left", "the child keeps what it learns"

    rules = (
        without("could not be sent", "something that can be pickled, such as tensors without a history",
                "what do you put? A queue pickles it in a thread of its own, which only prints the error"),
        without("nothing arrived", "the weights in `queue`",
                "`queue.put(…)` sends them. Put them before you wait; nobody gets what a child returns"),
        without("could not be fetched", "the memory can still be fetched",
                "which process holds the tensors' memory until the parent has it? Only `done` says that it has it"),
        without("could not be loaded", "every parameter and every buffer by name, or `torch.save`'s bytes of that",
                "which method of the model returns all weights? Bytes are those of `torch.save`, from `getvalue`"),
        each(not_the_weights_of_now, "a tensor that you put shares its memory with `model`, and `state_dict()` copies "
                                     "nothing. Take a copy before you train on"),
        same("weights", "which numbers do you put? They must be the model's, neither rounded nor changed afterwards: "
                        "memory stays shared, and the parent reads what it holds then"),
        each(not_trained_on_once, "in which order do you put, train on, and wait? And who else writes into `model`?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("the memory of the tensors goes with your process. Stay until `done` is set", wait=""),
        mistake("nobody knows when the parent reads. Wait for `done`", wait="import time\ntime.sleep(30)"),
        mistake("an empty queue says that the note was read. Only `done` says that the memory was fetched",
                wait="while not queue.empty():\n"
                     "    pass"),
        mistake("the parent sets `done`. You have to wait for it", wait="done.set()"),
        mistake("nobody knows when the parent reads. Wait without a limit", wait="done.wait(0.5)"),
        mistake("the parent sets `done` after it has the weights. Put them first",
                put="done.wait()\nqueue.put(weights)"),
        mistake("`named_parameters()` leaves the buffers out",
                copy="weights = {name: one.detach().clone() for name, one in model.named_parameters()}"),
        mistake("the parent reads what the memory holds when it comes, and `state_dict()` copies nothing. Put clones",
                copy="weights = model.state_dict()"),
        mistake("the parent may come late. Train on before you wait", train="done.wait()\ntrain_on()"),
        mistake("training on is your task, too", train=""),
    )


send_weights = SendWeights()
