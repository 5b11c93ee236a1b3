"""Problems of memory: what the program holds at its peak and need not."""
