"""Who called what: calls, modules, sections, stacks, and whose time a span is."""
