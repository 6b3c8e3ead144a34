"""Which way a key goes, and into how many pieces a table is cut: Parallax's decisions, extended. Pure.

::

    density      how many rows a step touches
    cost         the bytes and the time of a key on each way
    routes       allreduce or servers, for each key, and when that changes
    fit          a curve through the times of steps
    partitions   the number of pieces
    placement    how many pieces each server gets
    plan         all of this for people, and as JSON

Nothing here sends, waits or measures: whoever does, feeds numbers on which all ranks agree, and all ranks
come to the same answers.
"""
