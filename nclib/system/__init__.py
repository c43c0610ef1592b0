"""The machine below: folders and files, processes, what a number depends on, the words of verdicts."""
