"""The exercises of mixed precision, in the order of the lesson."""

from lessons.mixed_precision.exercises.train_step import train_step
from lessons.mixed_precision.exercises.choose_dtype import choose_dtype
from lessons.mixed_precision.exercises.largest_batch import largest_batch
from lessons.mixed_precision.exercises.first_overflow import first_overflow
