"""The exercises of the speed ladder, in the order of the lesson."""

from lessons.speed_ladder.exercises.predicted_gain import predicted_gain
from lessons.speed_ladder.exercises.beat_the_course import beat_the_course, course_loop
from lessons.speed_ladder.exercises.prepared_once import prepared_once
