"""The runs behind a notebook of one of the papers."""

from nclib.engine.experiments import experiment

__all__ = ["experiment"]
