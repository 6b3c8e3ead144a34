"""One package for each framework, above what all of them need; mxnet is the first.

A framework's package is glue between its calls and ``interfaces.KVWorker``. Beside it lies what does not
depend on the framework: which worker this is (``place``), which arrays a key takes (``store_keys``), what
has gone wrong (``collected_errors``), when hyper-parameters have changed (``hyper_watch``), when parameters
meet a center (``timetable``).
"""
