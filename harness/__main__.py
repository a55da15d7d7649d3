"""Where the command `frostline` begins, and `python -m frostline.harness`: nothing is imported before Ctrl-C is heeded.

The front door takes half a second to import. Whoever stops the command then gets one line, as later, and no traceback of
whatever was being imported.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def _leave(*_: object) -> None:
    os.write(2, b"frostline: interrupted\n")
    os._exit(INTERRUPTED)


def main() -> None:
    """Import the front door and open it."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so in the background of a shell
    if heeded:
        signal.signal(signal.SIGINT, _leave)
    from frostline.harness.cli import main as open_front_door

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    open_front_door()


if __name__ == "__main__":
    main()
