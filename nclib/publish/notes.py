"""What notebooks state next to their figures and tables, under one name as `nclib.publish.plotting` is for figures."""

from nclib.profiles import given, scale_of
from nclib.publish.captions import describe_runs, describe_seeds, stand_ins
from nclib.publish.readable import readable
from nclib.runs import runs_provenance

__all__ = ["describe_runs", "describe_seeds", "given", "readable", "runs_provenance", "scale_of", "stand_ins"]
