"""Looks at replicas and changes nothing."""
