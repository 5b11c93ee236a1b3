"""One problem per file, by subject. A rule imports no other rule."""
