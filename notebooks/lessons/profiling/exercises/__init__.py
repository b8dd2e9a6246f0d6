"""The exercises of profiling, in the order of the lesson."""

from lessons.profiling.exercises.profile_the_loop import profile_the_loop
from lessons.profiling.exercises.find_the_culprit import find_the_culprit
from lessons.profiling.exercises.make_it_fast import make_it_fast
