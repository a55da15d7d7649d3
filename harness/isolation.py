"""A fresh process for each measurement, seen from the session: start, ask, and know how it ended.

`spawn` starts a new interpreter with safe path (`-P`); `forks.py` has the other way. Commands and replies travel on
inherited descriptors; stdout and stderr are read by a thread that keeps their end, so neither a `print` nor a flood of it
disturbs a measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from frostline.harness.interpreters import OWN, Interpreter
from frostline.harness.leaving import ends_with_us, has_ended, uninterrupted
from frostline.results.record import Module, Status, UsageError

STDERR_KEPT = 16_384  # characters of the end of a process' output that are stored
# A thread that waits for its siblings sleeps instead of spinning. With another process on one of two cores, spinning made each
# parallel operator take a scheduler's time slice: a step of 34 ms took 500 ms.
QUIET_WAITING = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
CHUNK, CHUNKS_AT_THE_END = 65_536, 16  # bytes read at a time; a pipe holds no more than so many, unless it is still written to
LOOK_AGAIN_S = 1.0  # how often a process that does not answer is looked at
GRACE_S = 5.0  # how long a process may take to leave once it was told to


class Ended(Exception):
    """The process gave no measurement: a status, one line of reason, and what modules it had imported until then."""

    def __init__(self, status: Status, reason: str, modules: list[Module] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.modules = status, reason, modules or []


@dataclass(frozen=True)
class Start:
    """What a process is given, however it is started; `Process` says what the fields mean."""

    path: Path | None
    targets: tuple[str, ...]
    device: str
    seed: int
    threads: int
    python: Interpreter = OWN
    memory_limit: int | None = None

    def message(self) -> dict[str, Any]:
        """The first line that a worker reads."""
        path = None if self.path is None else str(self.path)
        return {"path": path, "targets": self.targets, "device": self.device, "seed": self.seed} | (
            {} if self.memory_limit is None else {"memory_limit": self.memory_limit}
        )


@dataclass(frozen=True)
class Ends:
    """The descriptors that a process gets: its commands to read, its replies and its output to write."""

    command: int
    reply: int
    output: int


class Handle(Protocol):
    """A process that was started.

    isolation: how, for the record. pid: its number. fate: why it ended, where its exit code does not tell.
    """

    isolation: str
    pid: int
    fate: str

    def poll(self) -> int | None:
        """Its exit code, the negative signal that killed it, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code when it has ended. Raises `subprocess.TimeoutExpired`."""

    def end(self) -> None:
        """Kill it and its children, and wait until it is gone."""


Launch: TypeAlias = Callable[[Start, Ends], Handle]


class Spawned(subprocess.Popen[bytes]):
    """A worker in an interpreter of its own, as the leader of its session."""

    isolation = "spawn"
    fate = ""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        with uninterrupted():  # or a process would run that nobody knows of
            super().__init__(command, **how)
            ends_with_us(self.end)

    def end(self) -> None:
        """Kill it and its children, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        has_ended(self.end)


def spawn(start: Start, ends: Ends) -> Handle:
    """Start a worker in a new interpreter."""
    return Spawned(
        [start.python.executable, "-P", "-m", "frostline.harness.worker", str(ends.command), str(ends.reply)],
        pass_fds=(ends.command, ends.reply),
        stdin=subprocess.DEVNULL,
        stdout=ends.output,
        stderr=subprocess.STDOUT,
        env=environment(start.path, start.seed, start.threads, start.python),
        start_new_session=True,
    )


def environment(path: Path | None, hash_seed: int, threads: int, python: Interpreter = OWN) -> dict[str, str]:
    """The variables of an interpreter that measures: the user's, with what all sides must have alike.

    The side's directory is among them for what the step itself starts: a child must load its side's code as well.
    """
    alike = {"PYTHONHASHSEED": str(hash_seed), **thread_variables(threads), **QUIET_WAITING}
    return os.environ | alike | python.path_variable(path)


def thread_variables(threads: int) -> dict[str, str]:
    """What torch and the BLAS underneath read when they are loaded."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))


def cause_of_death(code: int) -> str:
    """An exit code, or the negative number of a signal, in words."""
    if code >= 0:
        return f"left with exit code {code}"
    name = signal.Signals(-code).name
    hint = ", perhaps by the kernel for want of memory" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


class Tail:
    """Reads a descriptor to its end, or until enough was said, in a thread, and keeps the last of it.

    `before` is what was said already.
    """

    def __init__(self, output: int, before: str = "") -> None:
        self._output = output
        self._enough, self._say_enough = os.pipe()
        self._chunks: deque[str] = deque([before])
        self._kept = len(before)
        self._thread = threading.Thread(target=self._keep_end, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The last `STDERR_KEPT` characters until now."""
        return "".join(self._chunks.copy())[-STDERR_KEPT:]

    def join(self) -> None:
        """Take what is there by now. The end of it may be far: a child that the process left behind may hold it open."""
        if self._say_enough >= 0:
            os.close(self._say_enough)
            self._say_enough = -1
        self._thread.join(GRACE_S)

    def _keep_end(self) -> None:
        with os.fdopen(self._output, "rb", buffering=0) as output, os.fdopen(self._enough) as enough:
            while enough not in select.select([output, enough], [], [])[0]:
                chunk = output.read(CHUNK)
                if not chunk:
                    return
                self._keep(chunk)
            os.set_blocking(output.fileno(), False)
            for _ in range(CHUNKS_AT_THE_END):
                chunk = output.read(CHUNK)
                if not chunk:
                    return
                self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        self._chunks.append(chunk.decode(errors="replace"))
        self._kept += len(self._chunks[-1])
        while len(self._chunks) > 1 and self._kept - len(self._chunks[0]) > STDERR_KEPT:
            self._kept -= len(self._chunks.popleft())


class Process:
    """One worker. Not thread-safe; use as a context manager so that no process outlives its measurement."""

    def __init__(
        self,
        *,
        path: Path | None,
        targets: tuple[str, ...],
        device: str,
        seed: int,
        threads: int,
        timeout_s: float,
        python: Interpreter = OWN,
        memory_limit: int | None = None,
        launch: Launch = spawn,
        spawned_because: str = "",
        said_before: str = "",
    ) -> None:
        """Start it; the interpreter comes up while the session goes on.

        Args:
            path: the side's directory, in front on the worker's path; None for what is installed.
            targets: the packages whose modules the worker reports.
            seed: seeds torch and Python's hashing, the same on all sides of a round.
            threads: for torch and the BLAS underneath.
            timeout_s: the longest that one request may take.
            python: the interpreter that it runs in.
            memory_limit: bytes of the GPU's memory that it may allocate; None for all there is.
            launch: how it is started. What it raises is raised.
            spawned_because: why it is not forked although that was asked for; kept for the record.
            said_before: what was printed while its suite was imported, where that was in another process.
        """
        self.timeout_s, self.spawned_because = timeout_s, spawned_because
        self._started, self._ended = time.monotonic(), 0.0
        self._pending = b""
        self._modules: list[Module] = []
        start = Start(path, targets, device, seed, threads, python, memory_limit)
        (command, self._command), (self._reply, reply), (own_output, output) = os.pipe(), os.pipe(), os.pipe()
        try:
            self._handle = launch(start, Ends(command, reply, output))
        except BaseException:
            for mine in (self._command, self._reply, own_output):
                os.close(mine)
            raise
        finally:
            for its in (command, reply, output):
                os.close(its)
        self._tail = Tail(own_output, said_before)
        self.tell(start.message())

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
        if "modules" in reply:  # others than before
            self._modules = [Module(**module) for module in reply["modules"]]
        reply["modules"] = self._modules
        if "usage" in reply:
            raise UsageError(reply["usage"])
        if "status" in reply:
            raise Ended(Status(reply["status"]), reply["reason"], reply["modules"])
        return reply

    def stderr(self) -> str:
        """The end of what the process printed, stdout and stderr in the order of their coming."""
        return self._tail.text()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._handle.pid

    @property
    def isolation(self) -> str:
        """How it was started: `spawn` or `fork`."""
        return self._handle.isolation

    @property
    def seconds(self) -> float:
        """How long it has lived, or lived."""
        return (self._ended or time.monotonic()) - self._started

    def dismiss(self) -> None:
        """Tell it to leave, without waiting for it."""
        if self._command >= 0:
            os.close(self._command)
            self._command = -1

    def kill(self) -> None:
        """End it by force. Whoever waits for its answer is told that it ended."""
        self._handle.end()

    def close(self) -> None:
        """End it: first by closing its commands, then by force. Its children go with it."""
        if self._ended:
            return
        self.dismiss()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._handle.wait(GRACE_S)
        self._handle.end()
        os.close(self._reply)
        self._ended = time.monotonic()
        self._tail.join()

    def _line(self) -> str:
        deadline = time.monotonic() + self.timeout_s
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if not select.select([self._reply], [], [], max(0.0, min(left, LOOK_AGAIN_S)))[0]:
                if self._handle.poll() is not None:  # a child that it left behind may hold its end of the channel open
                    raise Ended(Status.CRASH, self._epitaph())
                if left <= 0:
                    self._handle.end()
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
            code = self._handle.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._handle.end()
            return "closed its reply channel and did not leave"
        if self._handle.fate:
            return self._handle.fate
        return cause_of_death(code) + (" without an answer" if code >= 0 else "")
