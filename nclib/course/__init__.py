"""The walkthrough: its exercises, their checks and the answers that are wrong."""

from nclib.course.exercises import check_exercise
from nclib.course.memory import saved_bytes

__all__ = ["check_exercise", "saved_bytes"]
