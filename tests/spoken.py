"""Words in which the pages say numbers and verdicts."""

import re

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def in_words(row):
    """The verdict of a row of a table and, where it is "reported" alone, the side that the remark names."""
    side = re.match("higher|lower", row["remark"]) if row["verdict"] == "reported" else None
    return row["verdict"] + (f": {side[0]}" if side else "")
