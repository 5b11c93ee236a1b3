"""What torch.compile would make of a recorded step.

Its operators (nodes.py) are fused into kernels (kernels.py), priced (prices.py), put together step by step (steps.py), and
become an edit of the program for each way to compile (levels.py).
"""
