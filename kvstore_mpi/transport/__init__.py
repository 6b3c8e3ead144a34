"""How messages travel: over sockets between processes, in memory within one for tests."""
