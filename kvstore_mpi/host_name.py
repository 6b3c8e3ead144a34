"""What this host calls itself, as text that messages, files and terminals take."""

from __future__ import annotations

import socket


def host_name() -> str:
    """Return the host's name; bytes in it that are no text, which the kernel takes, stand there in hex."""
    name = socket.gethostname()  # noqa: TID251  the one place
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
