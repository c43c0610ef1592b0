"""What notebooks state next to their figures and tables, under one name as `nclib.publish.plotting` is for figures."""

from nclib.engine.outline import scale_of
from nclib.engine.profiles import given
from nclib.engine.runs import runs_provenance
from nclib.publish.captions import describe_runs, describe_seeds, stand_ins
from nclib.publish.readable import readable

__all__ = ["describe_runs", "describe_seeds", "given", "readable", "runs_provenance", "scale_of", "stand_ins"]
