"""Problems of programs that compute on the processor."""
