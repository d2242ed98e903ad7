"""A run directory: its files, written and read in one place."""
