"""What runs left behind: read, compared, drawn, laid out. No TensorFlow here."""
