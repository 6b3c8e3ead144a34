"""How a client and a job have ended, which failure came first, and what the user is told of it."""
