"""When each key of each client is exchanged, so that the servers are not asked for everything at once."""

from __future__ import annotations


def exchange_offset(client: int, num_clients: int, key: int, num_keys: int, interval: int) -> int:
    """Return the step of the interval after which a client exchanges a key.

    A client spreads its keys over the interval in their order, starting at its own share of it, and no two
    of all exchanges fall together while there are at least as many steps as exchanges. Streaming DiLoCo
    (Douillard et al. 2025, arXiv 2501.18512, section 2.2) spreads parts of a model likewise.

    Args:
        client: Number of the client.
        num_clients: Number of clients.
        key: Position of the key among the keys.
        num_keys: Number of keys.
        interval: Steps between two exchanges of one key.

    Returns:
        From 0 to interval - 1; the key is exchanged after each step s > 0, counted from 1, with
        ``s % interval`` equal to it. With one client and one key that is 0.
    """
    turned = (key + client * num_keys // num_clients) % num_keys
    return (turned * num_clients + client) * interval // (num_clients * num_keys)
