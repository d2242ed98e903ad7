"""Everything that knows of replicas: tf.distribute lives here and nowhere else."""
