"""Refuses requests to a server on this machine that come from a page of the outside world in a browser here.

Decisions that matter here:
- such a page could ask through a name that it lets point here (DNS rebinding). So the Host header must be the address
  that is listened on, or `localhost`; where that is every address of the machine, any address in figures or the
  machine's own name;
- it could send what it may not read: a browser asks nobody before it sends a form or a text. So a server that changes
  anything refuses requests that name another origin, and bodies of the kinds that a browser sends without asking, but
  for multipart/form-data, in which clients send files: a browser names the origin of such a request.
"""

import ipaddress
import platform
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

EVERY = ("0.0.0.0", "::")  # compared, not listened on
_UNASKED = ("", "text/plain", "application/x-www-form-urlencoded")


def is_own(asked: str, host: str, port: int) -> bool:
    """True if a Host header names the server on this host and port, so that no other name for its address was used."""
    name, colon, number = asked.rpartition(":")
    if not colon or number != str(port):
        return False
    if name in (f"[{host}]" if ":" in host else host, "localhost"):
        return True
    return host in EVERY and (name == platform.node() or _in_figures(name))


def refusal(
    hosts: Sequence[str], headers: Mapping[str, str], has_body: bool, host: str, port: int
) -> tuple[int, str] | None:
    """Why a server without a key refuses a request, as status and message; None where it may be answered. hosts: its
    Host headers. headers: all, by lower-case names."""
    if len(hosts) != 1 or not is_own(hosts[0], host, port):
        return (
            421,
            (
                f"this server answers to its own address only ({host}:{port}); under other names it needs a key,"
                " --api-key-variable"
            ),
        )
    origin = headers.get("origin")
    is_elsewhere = origin is not None and not is_own(urlsplit(origin).netloc, host, port)
    if is_elsewhere or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return 403, "this server takes no requests of web pages from elsewhere; with a key it does, --api-key-variable"
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if has_body and kind in _UNASKED:
        return 415, f"content-type: got {kind or 'none'}, expected application/json (or multipart/form-data for a file)"
    return None


def _in_figures(name: str) -> bool:
    """True if a host is an address, which no name server can have pointed elsewhere."""
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
