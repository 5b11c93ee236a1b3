"""Recordings and results as files for other viewers: report, Perfetto, flame graphs."""
