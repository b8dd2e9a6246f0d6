"""The exercises of the first lesson, in its order: `my_share` is solved together, the others alone."""

from lessons.start_here.exercises.my_share import my_share
from lessons.start_here.exercises.mean_of_ranks import mean_of_ranks
from lessons.start_here.exercises.say_it_once import say_it_once
