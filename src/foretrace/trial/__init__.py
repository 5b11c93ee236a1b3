"""A program is tried: changes that need no edit are made in processes of its own, and measured against the program as it is.

`candidates.py` knows the changes and which findings suggest them, `process.py` runs one variant, `sweep.py` all of them in
turn, `judgement.py` and `results.py` say what the numbers are worth, `report.py` makes the rows. `ledger.py` keeps what was
predicted beside what was measured; `verification.py` does the same for two recordings.
"""
