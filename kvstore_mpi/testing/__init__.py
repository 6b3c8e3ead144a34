"""A public test kit: whole jobs in one process, fakes, and contract suites for implementations."""
