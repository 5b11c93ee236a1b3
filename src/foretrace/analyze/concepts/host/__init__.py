"""The host's work: its calls, what it did when, and what the device waited for."""
