"""Data is moved that could stay where it is."""
