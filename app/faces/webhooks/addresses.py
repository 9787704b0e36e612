"""Decides which addresses lead to the public internet.

The tables are those of IANA's special-purpose registries. They are written out here because the results of
`ipaddress.is_global` differ between releases of Python.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

_REFUSED_V4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier-grade NAT, and one cloud's metadata
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # a public address that one cloud uses for its own control
            "169.254.0.0/16",  # link-local, and most clouds' metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
# All assigned addresses are in here. Outside are loopback, unspecified, unique local, link-local, multicast,
# IPv4-mapped and future kinds.
_UNICAST_V6: Final = IPv6Network("2000::/3")
_REFUSED_V6: Final = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo among them
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: an IPv4 address in disguise
            "3fff::/20",  # documentation
        ),
    )
)
# A resolver in a network without IPv4 gives these for hosts that have only IPv4, so that part is checked.
_NAT64: Final = IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether a client may make this service connect to `address`."""
    if isinstance(address, IPv6Address):
        if address not in _NAT64:
            return address in _UNICAST_V6 and not any(address in network for network in _REFUSED_V6)
        address = IPv4Address(address.packed[-4:])
    return not any(address in network for network in _REFUSED_V4)
