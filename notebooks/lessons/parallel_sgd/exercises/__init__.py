"""The exercises of parallel SGD, in the order of the lesson: samples shared, models averaged, and two bugs."""

from lessons.parallel_sgd.exercises.split import split
from lessons.parallel_sgd.exercises.aggregate import aggregate
from lessons.parallel_sgd.exercises.run_epoch import run_epoch
from lessons.parallel_sgd.exercises.train_epoch import train_epoch
