"""The exercises of processes, in the order of the lesson: what crosses between processes, and what does not."""

from lessons.processes.exercises.send_weights import send_weights
from lessons.processes.exercises.fill_my_slice import fill_my_slice
from lessons.processes.exercises.bring_it_home import bring_it_home
from lessons.processes.exercises.start_safely import start_safely
