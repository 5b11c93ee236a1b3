"""What the page asks for, one file for each resource: a Session becomes plain data or a payload."""
