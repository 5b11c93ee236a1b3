"""What operators had to compute and move, from their shapes."""
