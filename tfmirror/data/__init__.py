"""From sources to arrays to the parts of global batches. Knows no model and no device."""
