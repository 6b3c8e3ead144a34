"""One package for each framework; only glue between its calls and ``interfaces.KVWorker``."""
