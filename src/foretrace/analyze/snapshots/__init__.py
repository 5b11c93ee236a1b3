"""What a memory snapshot tells: who held memory at the peak, what leaks, what is wasted, why it did not fit."""
