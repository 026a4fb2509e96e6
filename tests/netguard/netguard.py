"""Refuses every connection, datagram, listening address and name lookup that would leave this machine.

An audit hook sees the call before the system does, so a refused call sends no packet. It cannot be removed once
installed. Unix sockets and loopback addresses pass. One gap: a host name given straight to `connect` is looked up
by the system before the hook sees it; the connection itself is refused. Cheap to import, because every child
process of the tests loads it too, through `sitecustomize` in this folder.
"""

from __future__ import annotations

import os
import sys

_AF_UNIX = 1  # as a number: importing socket in every child costs more than the guard itself
_ADDRESS_EVENTS = frozenset({"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"})
_LOOKUP_EVENTS = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"})
_installed: list[bool] = []


class NonLoopbackRefused(RuntimeError):
    """A test tried to reach beyond this machine. Not an OSError: code that retries those must not swallow it."""


def install() -> None:
    """Guards this process from now on; a second call changes nothing."""
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_refuse)


def guard_children() -> None:
    """Makes every Python process started from here load the guard before its first line."""
    folder = os.path.dirname(os.path.abspath(__file__))
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *known])


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if event in _ADDRESS_EVENTS:
        sock, address = args[0], args[1]
        if address is None or getattr(sock, "family", None) == _AF_UNIX:
            return
        # Families other than IPv4 and IPv6 (netlink, packet, vsock) name no loopback host, so they are refused.
        host = address[0] if isinstance(address, tuple) else None
        if not _is_loopback(host):
            raise NonLoopbackRefused(f"{event} {address!r}: tests reach loopback addresses only")
    elif event in _LOOKUP_EVENTS:
        name = args[0][0] if isinstance(args[0], tuple) else args[0]
        if name is not None and not _is_loopback(name):
            raise NonLoopbackRefused(f"{event} {name!r}: tests look up localhost only")


def _is_loopback(host: object) -> bool:
    if isinstance(host, bytes | bytearray):
        host = bytes(host).decode("ascii", "replace")
    if not isinstance(host, str):
        return False
    host = host.lower().removeprefix("::ffff:")
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())
