"""Between roles: messages, their coding, handshakes, numbered sessions, and the I/O loop."""
