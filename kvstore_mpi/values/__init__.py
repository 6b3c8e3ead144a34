"""What a value is: how a key is laid out in slices, and what stands for a slice on the wire. Pure.

A layout (``layout``) answers how a key is cut, how large it is, and how it is read, summed and sent back;
a coding (``coding``) what travels instead of a slice's elements. Queues, messages and rounds carry both and
do not look inside.
"""
