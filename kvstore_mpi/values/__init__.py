"""What a value is: how a key is laid out in slices, and what stands for a slice on the wire. Pure.

A layout (``dense``) answers how a key is cut, read, summed, updated and sent back; a coding (``coding``)
what travels instead of a slice's elements. Queues, messages and rounds carry both without looking inside.
"""
