"""The exercises of sharding, in the order of the lesson."""

from lessons.sharding.exercises.sharded_adamw import sharded_adamw
from lessons.sharding.exercises.memory_per_rank import memory_per_rank
from lessons.sharding.exercises.my_piece import my_piece
from lessons.sharding.exercises.shard_it import shard_it
