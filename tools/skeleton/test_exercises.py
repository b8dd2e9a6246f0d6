"""New lesson: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
my_new_lesson    one rank's number known by heart; one factor; text in place of a number
"""

import os

from lessons.new_lesson import exercises as ex
from tests.answers import edits, right

test_my_new_lesson = edits(
    ex.my_new_lesson,
    ('int(os.environ["RANK"])', "0", "in rank 1, `what it returned` is 0"),
    (" * factor", "", "factor 10: in rank 1, `what it returned` is 1"),
    ('int(os.environ["RANK"])', 'os.environ["RANK"]', "is '0'"),
)


@right(ex.my_new_lesson)
def test_another_style(factor):
    return sum([int(os.getenv("RANK"))] * factor)
