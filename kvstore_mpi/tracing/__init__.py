"""Seeing a job: what each process records, how the records become one trace, and what a report makes of it.

``recorder.py`` and ``annotation.py`` act inside the processes of a job, ``parts.py`` writes and reads their
files; ``clock.py``, ``events.py``, ``intervals.py``, ``timeline.py``, ``chrome.py`` and ``report.py`` are
pure. Nothing is imported here, so that a process loads only what it uses.
"""
