"""What the names of kernels, operators and runtime calls say."""
