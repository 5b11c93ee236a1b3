"""What speaks for or against a recording."""
