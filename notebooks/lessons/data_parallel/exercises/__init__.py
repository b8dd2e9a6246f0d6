"""The exercises of DataParallel, in the order of the lesson."""

from lessons.data_parallel.exercises.scatter_and_gather import scatter_and_gather
from lessons.data_parallel.exercises.without_prefix import without_prefix
from lessons.data_parallel.exercises.device_memory import device_memory
