"""The protocol as pure code: messages, codec, sessions, placement and the state of each role."""
