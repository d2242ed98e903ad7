"""What a trained model is used for: evaluation, prediction, export."""
