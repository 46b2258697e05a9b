"""PyTorch's distributed checkpoint format, read and written without unpickling."""
