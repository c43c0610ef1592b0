"""Many runs: stored, planned, made here or by workers, compared with reference runs."""
