"""The exercises of new_lesson, in the order of the lesson."""

from lessons.new_lesson.exercises.my_new_lesson import my_new_lesson
