"""Small helpers that are about to find a place."""
