"""The GPU waits for the host."""
