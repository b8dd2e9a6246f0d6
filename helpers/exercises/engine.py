"""TRANSITION: old names, until all lessons are converted."""
from helpers.exercises.exercise import *  # noqa
from helpers.exercises.exercise import Exercise  # noqa
from helpers.exercises.feedback import *  # noqa
from helpers.exercises.feedback import CORRECT, NOT_YET, NOT_ATTEMPTED  # noqa
from helpers.exercises.in_rank import scratch  # noqa
