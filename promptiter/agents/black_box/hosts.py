"""AgentHosts: the hosts at which a server may call agents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import urlsplit

from promptiter.errors import SetupError
from promptiter.wording import join_names, shorten

_PORTS = {"http": 80, "https": 443}
_METADATA = frozenset(
    map(ip_address, ("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "100.100.100.200"))
)
"""Addresses that are not link-local where clouds serve credentials: AWS (twice), Google, Oracle, Alibaba."""
_NAT64 = ip_network("64:ff9b::/96")

_Place: TypeAlias = tuple[str, "int | None"]
"""A host, and a port of it; None for all its ports."""


@dataclass(frozen=True, slots=True)
class AgentHosts:
    """Hosts that may be called; without a list, all but link-local addresses, where clouds serve credentials.

    The address of a host is checked, too, whenever a connection has been made: its name may lead elsewhere by then.
    """

    allowed: frozenset[_Place] | None = None

    @staticmethod
    def parse(hosts: Iterable[str] | None) -> AgentHosts:
        """Those of a list of `host` and `host:port`. Raises SetupError if one is something else."""
        return AgentHosts(None if hosts is None else frozenset(map(_parse_place, hosts)))

    def check(self, url: str) -> None:
        """Raise SetupError if an agent at this address may not be called. No name is looked up."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        except (ValueError, KeyError) as error:
            raise SetupError(f"{shorten(url)} is not an address with a host and a port that can be checked") from error
        if self.allowed is not None and not self._has(host, port):
            listed = join_names(sorted(map(_format_place, self.allowed))) or "no host"
            raise SetupError(f"agents at {_format_place((host, port))!r} may not be called; allowed: {listed}")
        self.check_peer(host, port)

    def check_peer(self, host: str, port: int) -> None:
        """Raise SetupError if this is a link-local address that is not itself on the list."""
        if _is_link_local(host) and not self._has(host, port):
            raise SetupError(
                f"agents at {_format_place((host, port))!r} may not be called: it is a link-local address, where "
                "clouds serve credentials; if an agent is there, allow this address"
            )

    def _has(self, host: str, port: int) -> bool:
        found = _simplify(host)
        return self.allowed is not None and not self.allowed.isdisjoint({(found, None), (found, port)})


def _parse_place(text: str) -> _Place:
    try:
        return str(ip_address(text)), None
    except ValueError:
        pass
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if not parts.hostname or parts.netloc != text or "@" in text or text.endswith(":"):
        raise SetupError(f"{shorten(text)} is not a host; give HOST or HOST:PORT, such as agents.example:8080")
    return _simplify(parts.hostname), port


def _format_place(place: _Place) -> str:
    host, port = place
    named = f"[{host}]" if ":" in host else host
    return named if port is None else f"{named}:{port}"


def _simplify(host: str) -> str:
    """One spelling for each host."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")


def _is_link_local(host: str) -> bool:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:  # a name
        return False
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = IPv4Address(address.packed[-4:])
        address = inner or address
    return address.is_link_local or address in _METADATA
