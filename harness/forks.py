"""A zygote, and the workers forked from it, seen from the session. `zygote.py` is the other end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frostline.harness.interpreters import OWN, Interpreter
from frostline.harness.isolation import (
    GRACE_S,
    Ends,
    Handle,
    Spawned,
    Start,
    Tail,
    cause_of_death,
    environment,
    thread_variables,
)
from frostline.harness.leaving import ends_with_us, has_ended

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"  # torch then counts GPUs without waking CUDA, which no copy could use


class Refused(Exception):
    """The zygote makes no copy, for the reason given."""


class Stale(Exception):
    """The zygote is gone, or what it has imported is not what is there now: a new one may do."""


class Zygote:
    """One zygote. It comes up while the session goes on."""

    def __init__(
        self,
        *,
        suite: str,
        path: Path | None,
        targets: Sequence[str],
        hash_seed: int,
        timeout_s: float,
        python: Interpreter = OWN,
        predicting: bool = False,
    ) -> None:
        """Start it.

        Args:
            suite: the suite to load, as a plan names it.
            path: the side's directory, in front on the path; None for what is installed.
            targets: the packages whose files must stay as they were when they were imported.
            hash_seed: of Python's hashing, the same in all of its copies.
            timeout_s: the longest that it may take to import the suite.
            python: the interpreter that it runs in.
            predicting: whether its copies are to predict: what that takes is imported as well.
        """
        self._timeout_s, self._ready, self._pending = timeout_s, False, b""
        self._control, theirs = socket.socketpair()
        own_output, output = os.pipe()
        self._process = Spawned(
            [python.executable, "-P", "-m", "frostline.harness.zygote", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(path, hash_seed, 1, python) | {NVML_CHECK: "1"},
            start_new_session=True,
        )
        ends_with_us(self.close)
        theirs.close()
        os.close(output)
        self._tail = Tail(own_output)
        where = None if path is None else str(path)
        self._send({"suite": suite, "path": where, "targets": list(targets), "predicting": predicting})

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def fork(self, start: Start, ends: Ends) -> Handle:
        """A worker with these ends.

        Raises:
            Refused: its copies would not be sound, or the suite cannot be loaded.
            Stale: it is gone, or what it imported has changed since on disk.
        """
        self._await_ready()
        status, theirs = os.pipe()
        variables: dict[str, str | None] = {**thread_variables(start.threads), NVML_CHECK: os.environ.get(NVML_CHECK)}
        try:
            self._send({"threads": start.threads, "variables": variables}, (ends.command, ends.reply, ends.output, theirs))
            pid = self._receive()["pid"]
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(theirs)
        return Forked(pid, status, self._process)

    def said(self) -> str:
        """The end of what was printed while the suite was imported."""
        return self._tail.text()

    def close(self) -> None:
        """End it, and its copies with it."""
        self._control.close()
        if self._ready:  # and not in the midst of an import, which may last
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        self._process.end()
        has_ended(self.close)
        self._tail.join()

    def _await_ready(self) -> None:
        if self._ready:
            return
        try:
            self._receive()
        except Stale as gone:
            raise Refused(f"importing the suite ended the process: {gone}") from None
        self._ready = True

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        line = (json.dumps(message) + "\n").encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is gone: its reply will not come
            socket.send_fds(self._control, [line], descriptors)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout_s
        while not self._pending.endswith(b"\n"):
            if not select.select([self._control], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Refused(f"the process to fork from gave no answer within {self._timeout_s:g} s")
            chunk = b""
            with contextlib.suppress(ConnectionResetError):
                chunk = self._control.recv(65_536)
            if not chunk:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    raise Stale(cause_of_death(self._process.wait(GRACE_S)))
                raise Stale("closed its channel and did not leave")
            self._pending += chunk
        reply: dict[str, Any] = json.loads(self._pending)
        self._pending = b""
        if "refused" in reply:
            raise Refused(reply["refused"])
        if "stale" in reply:
            raise Stale("what it had imported has changed on disk")
        return reply


class Forked:
    """A worker forked from a zygote, which says how it ended. Without its zygote a worker is ended as well."""

    isolation = "fork"

    def __init__(self, pid: int, status: int, zygote: subprocess.Popen[bytes]) -> None:
        self.pid, self.fate = pid, ""
        self._status, self._zygote = status, zygote
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, the negative signal that killed it, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code when it has ended. Raises `subprocess.TimeoutExpired`."""
        if self._code is not None:
            return self._code
        if not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        told = os.read(self._status, 64)
        os.close(self._status)
        if not told:
            self._kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.fate = f"ended with the process that it was forked from: {cause_of_death(self._zygote.wait(GRACE_S))}"
        self._code = int(told) if told else -signal.SIGKILL
        return self._code

    def end(self) -> None:
        """Kill it and its children, and wait until it is gone. Its zygote has killed what one that ended left behind."""
        if self.poll() is None:
            self._kill()
            self.wait()

    def _kill(self) -> None:
        for kill in (os.killpg, os.kill):  # one that was born just now leads no group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)
