"""A Trace is replayed, as it was or with a Change made, and becomes a Prediction."""
