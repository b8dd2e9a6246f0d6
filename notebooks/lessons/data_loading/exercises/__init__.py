"""The exercises of data loading, in the order of the lesson: loading hidden, a stream shared, a slow step found."""

from lessons.data_loading.exercises.hide_the_loading import hide_the_loading
from lessons.data_loading.exercises.shard_the_stream import shard_the_stream
from lessons.data_loading.exercises.slowest_transform import slowest_transform
