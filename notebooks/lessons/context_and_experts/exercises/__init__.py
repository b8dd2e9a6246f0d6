"""The exercises of context and experts, in the order of the lesson."""

from lessons.context_and_experts.exercises.fair_cut import fair_cut
from lessons.context_and_experts.exercises.merge_blocks import merge_blocks
from lessons.context_and_experts.exercises.to_their_experts import to_their_experts
from lessons.context_and_experts.exercises.skipping_ring import skipping_ring
from lessons.context_and_experts.exercises.rows_of_two import rows_of_two
