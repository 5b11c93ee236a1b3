"""What `foretrace mcp` serves: each tool asks the stage behind a command, and answers in tokens."""
