"""What each process of a job knows of itself: counters, what it waits for, and how that is told.

``counters.py`` says which numbers there are and ``status.py`` what a process tells; both are pure. Each
role gathers its own in a ``status.py`` beside its state. ``telling.py`` and ``stacks.py`` act. Nothing is
imported here, so that a process loads only what it uses.
"""
