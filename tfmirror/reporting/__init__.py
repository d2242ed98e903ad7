"""Compares runs and shows them as tables, pictures and a page, without TensorFlow."""
