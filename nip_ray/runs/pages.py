"""A read-only web server for pages: GET and HEAD only, on this machine alone by default.

Decisions that matter here:
- `Pages.answer` determines the valid addresses: no path is a path of the file system;
- a request with another host name than the server's own (`nip_ray.cluster.own_address`) is refused before anything is
  read.
"""

import platform
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from nip_ray.cluster.own_address import EVERY, is_own
from nip_ray.errors import UserError

ADDRESS = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Answer:
    """A response: a text in UTF-8, its content type, and the status."""

    body: bytes
    kind: str = "text/html"
    code: int = 200


class Pages(Protocol):
    """The content of a `PageServer`."""

    def answer(self, path: str) -> Answer | None:
        """The response for `path` (with its query, as received); None for an unknown one. A UserError becomes a
        response with its text."""
        ...


class PageServer(ThreadingHTTPServer):
    """Serves `Pages`. port: 0 for any free one; `url` has the result. host: an address or name of this machine."""

    daemon_threads = True
    request_queue_size = 1024
    """Maximum number of pending connections: others are dropped, and retried seconds later."""

    def __init__(self, pages: Pages, port: int = 0, host: str = ADDRESS) -> None:
        """Raises UserError if the port or the address is not available."""
        self.pages, self.host = pages, host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it must be below 65536"
            if host != ADDRESS and not _can_be_bound(host, self.address_family):
                raise UserError(
                    f"--host {host}: is not an address of this machine ({reason}); name one, or 0.0.0.0 for all of them"
                ) from None
            raise UserError(
                f"--port {port}: cannot be listened on ({reason}); choose another, or leave it out for a free one"
            ) from None

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore readers who disconnect during a response; report everything else."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """The address of the pages."""
        host = platform.node() if self.host in EVERY else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def serve(self, told: Callable[[str], None]) -> None:
        """Serve until Ctrl-C. told: called with the address, once it accepts requests."""
        told(self.url)
        with suppress(KeyboardInterrupt):  # the normal end
            self.serve_forever(poll_interval=0.2)

    def is_own(self, host: str) -> bool:
        """Return True if a Host header names this server."""
        return is_own(host, self.host, self.server_port)


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of the pages' responses; the base class refuses everything else."""

    server: PageServer
    server_version, sys_version = "nip-ray", ""
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds for a request to arrive: a silent client must not hold a thread

    def do_GET(self) -> None:
        """Send the response of the pages, or 404."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self.server.is_own(hosts[0]):
            self._send(Answer(b"this address answers to its own name only\n", "text/plain", 421))
            return
        try:
            found = self.server.pages.answer(self.path)
        except UserError as error:
            found = Answer(f"{error}\n".encode(errors="replace"), "text/plain", 404)
        self._send(found or Answer(b"there is no such page here\n", "text/plain", 404))

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.code)
        headers = {"Content-Type": f"{answer.kind}; charset=utf-8", "Content-Length": str(len(answer.body)), **_HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _can_be_bound(host: str, family: socket.AddressFamily) -> bool:
    """Return True if an address belongs to this machine."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((host, 0))
    except (OSError, UnicodeError):
        return False
    return True
