"""Looking at the site in a browser on this machine: a web server that only this machine reaches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from frostline.results.record import UsageError

LOOPBACK = "127.0.0.1"
_NAMES = (LOOPBACK, "localhost")


def serve(folder: Path, port: int, ready: Callable[[str], None]) -> None:
    """Serve a folder on the loopback address until Ctrl-C.

    Args:
        folder: what is served.
        port: 0 for any that is free.
        ready: called with the address once it answers.

    Raises:
        UsageError: the port is taken, or not ours to take.
    """
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, directory=str(folder)))
    except (OSError, OverflowError) as error:
        raise UsageError(f"--port: cannot listen on {LOOPBACK}:{port} ({error}); wanted a free port, or 0 for any") from None
    with server:
        ready(f"http://{LOOPBACK}:{server.server_port}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


class _Handler(SimpleHTTPRequestHandler):
    """Answers who asks for this machine by its own name: a page from elsewhere that was pointed here by DNS does not get it."""

    def send_head(self) -> Any:
        """The file asked for, or 403."""
        if self.headers.get("Host", "").rpartition(":")[0] not in _NAMES:
            self.send_error(403)
            return None
        return super().send_head()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing for each request."""
