"""What samples of lines mean: whose time a tick is, and in which phase of the program."""
