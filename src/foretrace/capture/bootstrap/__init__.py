"""A folder for PYTHONPATH: its sitecustomize is what the Python of a recorded program loads first."""
