"""The exercises of DDP in practice, in the order of the lesson."""

from lessons.ddp_in_practice.exercises.exact_accuracy import exact_accuracy
from lessons.ddp_in_practice.exercises.token_loss import token_loss
from lessons.ddp_in_practice.exercises.save_snapshot import save_snapshot
from lessons.ddp_in_practice.exercises.train_until import train_until
