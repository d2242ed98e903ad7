"""Uses a trained model: loads, evaluates and exports it, and predicts with it."""
