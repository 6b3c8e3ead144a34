"""On which addresses a process may listen for others, and what it says where it may not."""

from __future__ import annotations

import ipaddress

from kvstore_mpi.errors import ConfigurationError


def check_interface(interface: str) -> None:
    """Refuse what is not one IPv4 address.

    Raises:
        ConfigurationError: It is no IPv4 address, or stands for all of them.
    """
    try:
        wildcard = ipaddress.IPv4Address(interface).is_unspecified
    except ValueError as error:
        raise ConfigurationError(
            f"cannot listen on {interface!r}: not an IPv4 address ({error})"
        ) from error
    if wildcard:
        raise ConfigurationError(
            f"will not listen on {interface}, which is every network of this host; give the one address "
            "that the other hosts of the job can reach"
        )


def cannot_listen(interface: str, reason: str | None) -> ConfigurationError:
    """Return the error of an address on which the system does not let us listen."""
    return ConfigurationError(f"cannot listen on {interface}: {reason}; give an address of this host")
