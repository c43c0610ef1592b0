"""Many runs: stored, planned, made here or by workers, priced, compared with reference runs."""
