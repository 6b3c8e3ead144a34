"""One package for each framework, above what all of them need; mxnet is the first.

A framework's package is glue between its calls and ``interfaces.KVWorker``. Beside it lies what does not
depend on the framework: which worker this is (``place``), which arrays a key takes (``store_keys``), which
are copied before they are sent (``in_place``), what has gone wrong (``collected_errors``), when
hyper-parameters have changed (``hyper_watch``), when parameters meet a center (``timetable``). What a
framework's store must do is ``testing/adapter_contract.py``.
"""
