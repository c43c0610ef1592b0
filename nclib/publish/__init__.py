"""What is shown: figures and tables with their records, the scorecard, the web site."""
