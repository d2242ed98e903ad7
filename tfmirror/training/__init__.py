"""Epochs, files and logs: what surrounds the steps."""
