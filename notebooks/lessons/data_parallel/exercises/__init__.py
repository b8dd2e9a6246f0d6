"""The exercises of DataParallel, in the order of the lesson."""

from lessons.data_parallel.exercises.scatter_nested import scatter_nested
from lessons.data_parallel.exercises.gather_nested import gather_nested
from lessons.data_parallel.exercises.without_prefix import without_prefix
from lessons.data_parallel.exercises.device_memory import device_memory
