"""How fast it is, against others and against what the machine can do."""
