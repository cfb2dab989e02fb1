"""Models as PyTorch modules: readable code, and weights that can be trained and brought back."""
