"""Two recordings become a Comparison: what took more or less time, step for step."""
