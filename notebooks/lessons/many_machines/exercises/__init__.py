"""The exercises of many machines, in the order of the lesson."""

from lessons.many_machines.exercises.any_world import any_world
from lessons.many_machines.exercises.who_waits import who_waits
from lessons.many_machines.exercises.agent_options import agent_options
