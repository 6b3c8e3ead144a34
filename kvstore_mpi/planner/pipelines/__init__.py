"""Nets cut into segments: where to cut, in which order the segments run, and how long that takes. Pure.

::

    segments    a net's segments: what each needs, and the rank that has it
    stages      the best cut of a chain of layers into stages
    schedules   the order in which each rank computes: fill and drain, 1F1B
    timetable   when each computation of a schedule begins and ends
"""
