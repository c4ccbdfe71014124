"""Refuse requests to a server on this machine from a web page elsewhere in a local browser.

Decisions that matter here:
- such a page could use a name that it points here (DNS rebinding). So the Host header must be the listening address, or
  `localhost`; if that is every address of the machine, any numeric address or the machine's own name;
- it could send requests whose responses it may not read: a browser sends forms and texts without a preflight. So a
  server that changes anything refuses requests with another origin, and bodies of the types that a browser sends
  without a preflight, except multipart/form-data, in which clients send files: a browser names the origin of such a
  request.
"""

import ipaddress
import platform
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

EVERY = ("0.0.0.0", "::")  # compared, not listened on
_UNASKED = ("", "text/plain", "application/x-www-form-urlencoded")


def is_own(asked: str, host: str, port: int) -> bool:
    """True if a Host header names the server on this host and port, not another name for its address."""
    name, colon, number = asked.rpartition(":")
    if not colon or number != str(port):
        return False
    if name in (f"[{host}]" if ":" in host else host, "localhost"):
        return True
    return host in EVERY and (name == platform.node() or _in_figures(name))


def refusal(
    hosts: Sequence[str], headers: Mapping[str, str], has_body: bool, host: str, port: int
) -> tuple[int, str] | None:
    """Why a server without a key refuses a request, as status and message; None if it is allowed. hosts: its Host
    headers. headers: all, by lower-case names."""
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
    """True if a host is a numeric address, which no name server can point elsewhere."""
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
