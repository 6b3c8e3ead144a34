"""What only our own tests and simulations use: simulated jobs in virtual time, oracles, twins."""
