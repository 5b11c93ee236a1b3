"""Number formats cost more than they need to."""
