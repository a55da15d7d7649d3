"""What must not outlive the command, wherever Ctrl-C meets it: between a process' start and the line that knows of it, too."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_living: list[Callable[[], None]] = []


def ends_with_us(end: Callable[[], None]) -> None:
    """Have `end` called when the command is interrupted, until `has_ended` is told the same."""
    _living.append(end)


def has_ended(end: Callable[[], None]) -> None:
    """There is nothing left that `end` would end."""
    with suppress(ValueError):
        _living.remove(end)


def end_all() -> None:
    """End what is left: the last started first. What fails keeps nothing else from being ended, nor does another Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while _living:
        with suppress(Exception):
            _living.pop()()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done. It comes to the main thread alone, so elsewhere there is nothing to hold."""
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: held.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if held:
        usual(*held[0])
