"""The exercises of scaling, in the order of the lesson."""

from lessons.scaling.exercises.predict_curve import predict_curve
from lessons.scaling.exercises.choose_layout import choose_layout
from lessons.scaling.exercises.steps_between_saves import steps_between_saves
