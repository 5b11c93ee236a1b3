"""What analyses, predictions and rules share: one concept per file, by subject. No analysis is here."""
