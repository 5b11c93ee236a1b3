"""Ranks wait for each other."""
