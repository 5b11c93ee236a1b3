"""The device's work: its time, roles, phases, peaks and collectives."""
