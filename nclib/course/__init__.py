"""The walkthrough: its exercises, their checks and the answers that are wrong."""
