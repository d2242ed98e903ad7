"""Sources of examples, and the pipeline of global batches. Knows no model or device."""
