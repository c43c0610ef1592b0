"""The machine below: folders and files, processes, what a number depends on, the words of verdicts."""

import time

STARTED = time.time()
"""When nclib was first imported; its modules are imported when they are first used."""
