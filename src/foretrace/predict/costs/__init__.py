"""What work costs: one file per kind of work, each number with its source and the devices that it holds for.

Rules, `predict`, the page and `batch` take their numbers from here, so that one change has one answer.
"""
