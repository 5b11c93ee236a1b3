"""The page: what it is given, and the server that gives it."""
