"""Running user code: timed without a profiler first, then recorded. The result is a Run, a folder of raw files.

`foretrace run` starts a program whose Python loads `bootstrap/sitecustomize.py`; that calls `session.arm()`
once torch is imported. From then on `steps.py` finds where a step ends and `recorder.py` decides what each step
is for. Only the standard library and torch are needed in the recorded program.
"""
