"""What the page asks for, one file for each resource: a RecordingView becomes plain data or a payload."""
