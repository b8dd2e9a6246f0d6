"""The exercises of DistributedDataParallel, in the order of the lesson."""

from lessons.distributed_data_parallel.exercises.average_gradients import average_gradients
from lessons.distributed_data_parallel.exercises.ring_all_reduce import ring_all_reduce
from lessons.distributed_data_parallel.exercises.accumulate import accumulate
from lessons.distributed_data_parallel.exercises.fine_tune import fine_tune
