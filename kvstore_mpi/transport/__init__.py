"""The two ways in which messages travel: ZeroMQ between processes, memory within one for tests."""
