"""From sources to arrays to parts of global batches. Knows no model and no device."""
