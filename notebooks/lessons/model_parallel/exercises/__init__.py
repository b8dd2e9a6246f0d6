"""The exercises of model parallelism, in the order of the lesson."""

from lessons.model_parallel.exercises.one_f_one_b import one_f_one_b
from lessons.model_parallel.exercises.column_parallel import column_parallel
from lessons.model_parallel.exercises.mean_gradient import mean_gradient
