"""Many kernels do what one could."""
