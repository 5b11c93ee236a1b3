"""Blocks of memory: what they held, and how many were live when."""
