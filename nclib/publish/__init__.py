"""What is shown: figures and tables with their records, claims with their verdicts."""
