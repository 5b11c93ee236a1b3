"""What the recording itself does to the numbers."""
