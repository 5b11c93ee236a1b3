"""What several rules look for: one pattern of work per file. No rule is here."""
