"""The keys of one store, and their way through MXNet's engine to the worker and back."""
