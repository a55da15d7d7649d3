"""A fresh process for each measurement, seen from the session: start, ask, and know how it ended.

`spawn` starts a new interpreter with safe path (`-P`). Commands and replies travel on inherited descriptors; stdout and
stderr are read by a thread that keeps their end, so neither a `print` nor a flood of it disturbs a measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from frostline.results.record import Module, Status, UsageError

STDERR_KEPT = 16_384  # characters of the end of a process' output that are stored
# A thread that waits for its siblings sleeps instead of spinning. With another process on one of two cores, spinning made each
# parallel operator take a scheduler's time slice: a step of 34 ms took 500 ms.
QUIET_WAITING = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
LOOK_AGAIN_S = 1.0  # how often a process that does not answer is looked at
GRACE_S = 5.0  # how long a process may take to leave once it was told to


class Ended(Exception):
    """The process gave no measurement: a status, one line of reason, and what modules it had imported until then."""

    def __init__(self, status: Status, reason: str, modules: list[Module] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.modules = status, reason, modules or []


class Process:
    """One worker. Not thread-safe; use as a context manager so that no process outlives its measurement."""

    def __init__(
        self, *, path: Path | None, targets: tuple[str, ...], device: str, seed: int, threads: int, timeout_s: float
    ) -> None:
        """Start it; the interpreter comes up while the session goes on.

        Args:
            path: the side's directory, in front on the worker's path; None for what is installed.
            targets: the packages whose modules the worker reports.
            seed: seeds torch and Python's hashing, the same on all sides of a round.
            threads: for torch and the BLAS underneath.
            timeout_s: the longest that one request may take.
        """
        self.timeout_s, self._started, self._ended = timeout_s, time.monotonic(), 0.0
        self._output: deque[str] = deque()
        self._pending = b""
        command_read, self._command = os.pipe()
        self._reply, reply_write = os.pipe()
        environment = os.environ | {
            "PYTHONHASHSEED": str(seed),
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": str(threads),
            **QUIET_WAITING,
        }
        if path is not None:  # for what the step itself starts: a child must load its side's code as well
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "frostline.harness.worker", str(command_read), str(reply_write)],
            pass_fds=(command_read, reply_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        os.close(command_read)
        os.close(reply_write)
        self._reader = threading.Thread(target=self._keep_end, daemon=True)
        self._reader.start()
        start = {"path": str(path) if path else None, "targets": targets, "device": device, "seed": seed}
        self.tell(start)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message. A process that is gone says so when it is asked for its reply."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._command, (json.dumps(message, default=str) + "\n").encode())

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its reply. Raises as `answer` does."""
        self.tell({"do": do} | request)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The reply to the oldest open request, with `modules` as records.

        Raises:
            Ended: the request failed, took longer than `timeout_s`, or the process died.
            UsageError: the request found a mistake of the user's.
        """
        reply: dict[str, Any] = json.loads(self._line())
        reply["modules"] = [Module(**module) for module in reply.get("modules", ())]
        if "usage" in reply:
            raise UsageError(reply["usage"])
        if "status" in reply:
            raise Ended(Status(reply["status"]), reply["reason"], reply["modules"])
        return reply

    def stderr(self) -> str:
        """The end of what the process printed, stdout and stderr in the order of their coming."""
        return "".join(self._output)[-STDERR_KEPT:]

    @property
    def seconds(self) -> float:
        """How long it has lived, or lived."""
        return (self._ended or time.monotonic()) - self._started

    def dismiss(self) -> None:
        """Tell it to leave, without waiting for it."""
        if self._command >= 0:
            os.close(self._command)
            self._command = -1

    def close(self) -> None:
        """End it: first by closing its commands, then by force. Its children go with it."""
        if self._ended:
            return
        self.dismiss()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        self._kill()
        os.close(self._reply)
        self._ended = time.monotonic()
        self._reader.join(GRACE_S)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _line(self) -> str:
        deadline = time.monotonic() + self.timeout_s
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if not select.select([self._reply], [], [], max(0.0, min(left, LOOK_AGAIN_S)))[0]:
                if self._process.poll() is not None:  # a child that it left behind may hold its end of the channel open
                    raise Ended(Status.CRASH, self._epitaph())
                if left <= 0:
                    self._kill()
                    raise Ended(Status.TIMEOUT, f"no answer within {self.timeout_s:g} s")
                continue
            chunk = os.read(self._reply, 1 << 20)
            if not chunk:
                raise Ended(Status.CRASH, self._epitaph())
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def _epitaph(self) -> str:
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return "closed its reply channel and did not leave"
        if code >= 0:
            return f"left with exit code {code} without an answer"
        name = signal.Signals(-code).name
        hint = ", perhaps by the kernel for want of memory" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"

    def _keep_end(self) -> None:
        assert self._process.stdout is not None
        kept = 0
        with self._process.stdout as stream:
            while chunk := os.read(stream.fileno(), 65_536):
                self._output.append(chunk.decode(errors="replace"))
                kept += len(self._output[-1])
                while len(self._output) > 1 and kept - len(self._output[0]) > STDERR_KEPT:
                    kept -= len(self._output.popleft())
