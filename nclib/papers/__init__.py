"""What the papers state, and exact certificates of the verdicts on it: `nclib.papers.certify`."""
