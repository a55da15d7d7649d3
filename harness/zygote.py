"""The process that measured ones are forked from: it imports what the suite imports, once, and then copies itself on request.

Started by `frostline.harness.forks` as `python -P -m frostline.harness.zygote CONTROL_FD`, with one thread for every library.
The control socket carries lines of JSON: first the suite to load, then for each process to fork its threads, with four
descriptors (its commands, replies and output, and where to write how it ended). Each is answered in a line: the process'
number, or why there is none. When the socket is closed, the processes are killed and the zygote leaves.

A fork copies the thread that forks and no other: a pool of threads, or a CUDA context, does not work in the copy, and whoever
waits for it hangs. So the zygote looks at itself before each fork (`unfit`) and refuses when it has either.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from frostline.harness import selection
from frostline.harness.provenance import imported_modules
from frostline.harness.threads import Asked, set_threads
from frostline.harness.worker import Loaded, leave, serve

TASKS = Path("/proc/self/task")
CUDA_MEMORY_DEVICE = "/dev/nvidia-uvm"  # opened by cuInit, and not by NVML
DESCRIPTORS = 4
TICK_NS = 10_000_000  # a file's time is that of the last tick, up to 10 ms back; no interpreter starts as fast
INSTALLED = "site-packages"  # not edited while it is measured, and too much to look at
IMPORTED_LATER = {  # by a worker, where the package is there
    "torch": ("frostline.harness.meters.counts", "frostline.harness.meters.memory", "frostline.harness.verify"),
    "numpy": ("numpy.random",),
}


Stamp: TypeAlias = tuple[int, int, int] | None  # of a file: when it was written, its size, its inode; None where it is gone


@dataclass(frozen=True)
class Birth:
    """What a copy is to be: the descriptors that it talks on, its threads, and the variables of what it starts itself."""

    command: int
    reply: int
    output: int
    threads: int
    variables: dict[str, str | None]


class Zygote:
    """The state of the process between requests. `children` has for each process the descriptor that is told how it ended."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: dict[int, int] = {}
        self.targets: Sequence[str] = ()
        self.loaded: Loaded
        self.files: dict[str, Stamp] = {}
        self.asked = Asked()
        self.began_ns = time.time_ns()

    def run(self) -> Birth | None:
        """Serve until the session closes its end: then None. In a copy: what it is to be."""
        request, _ = self._receive()
        if request is None:
            return None
        refused = self._load(request)
        self._send({"refused": refused} if refused else {"ready": True})
        if refused:
            return None
        died, told = _signalled_deaths()
        while True:
            ready = select.select([self.control.fileno(), died], [], [])[0]
            if died in ready:
                os.read(died, 4096)
                self._reap()
            if self.control.fileno() in ready:
                request, descriptors = self._receive()
                if request is None:
                    self._end()
                    return None
                birth = self._fork(request, descriptors, (died, told))
                if birth is not None:
                    return birth

    def _load(self, request: dict[str, Any]) -> str:
        """Import what the suite imports; why it could not be, or nothing."""
        self.targets = request["targets"]
        if request["path"]:
            sys.path.insert(0, request["path"])
        gc.disable()  # nothing of what is imported is garbage, and looking through it takes a tenth of the time
        try:
            with self.asked:
                self.loaded = request["suite"], selection.load_suite(request["suite"])
            for package, later in IMPORTED_LATER.items():
                for name in later if package in sys.modules else ():
                    importlib.import_module(name)
            if request.get("predicting") and "torch" in sys.modules:
                from frostline.harness.cost import load_shapes

                load_shapes()
        except Exception as error:
            traceback.print_exc()
            return f"{type(error).__name__}: {error}".splitlines()[0][:500]
        self.files = {file: _stamp(file) for file in self._files_in_question()}
        gc.collect()
        gc.freeze()  # what is there stays: a collection in a copy would touch, and so copy, every page of it
        gc.enable()
        if self.asked.variables:  # whether before a library had read them, or after: who could say
            return f"what the suite imports sets {', '.join(self.asked.variables)}"
        return unfit()

    def _files_in_question(self) -> list[str]:
        """What was imported of the target packages, and the suite's file with what lies beside it."""
        suite = Path(self.loaded[1].path).resolve()
        names = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        beside = [name for name in names if name and suite.parent in Path(name).parents and INSTALLED not in Path(name).parts]
        return [str(suite), *beside, *(module.file for module in imported_modules(self.targets))]

    def _stale(self) -> bool:
        """Whether a file in question has changed since it was imported: a new interpreter would run other code."""
        late = any(stamp is not None and stamp[0] > self.began_ns - TICK_NS for stamp in self.files.values())
        return late or any(_stamp(file) != stamp for file, stamp in self.files.items())

    def _fork(self, request: dict[str, Any], descriptors: Sequence[int], own: Sequence[int]) -> Birth | None:
        command, reply, output, status = descriptors
        refusal: dict[str, Any] = {"stale": True} if self._stale() else {}
        if reason := unfit():
            refusal = {"refused": reason}
        pid = -1
        if not refusal:
            for stream in (sys.stdout, sys.stderr):  # or the copy would say it again
                with contextlib.suppress(Exception):
                    stream.flush()
            try:
                pid = os.fork()
            except OSError as error:
                refusal = {"refused": f"no copy could be made: {error.strerror}"}
        if pid == 0:
            self._forget((status, *own))
            return Birth(command, reply, output, request["threads"], request["variables"])
        for descriptor in (command, reply, output):
            os.close(descriptor)
        if refusal:
            os.close(status)
            self._send(refusal)
        else:
            self.children[pid] = status
            self._send({"pid": pid})
        return None

    def _forget(self, descriptors: Sequence[int]) -> None:
        """In a copy: let go of what is the zygote's own, so that its ends are closed when the zygote closes them."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.control.close()
        for descriptor in (*descriptors, *self.children.values()):
            os.close(descriptor)

    def _reap(self, look: int = os.WEXITED | os.WNOWAIT | os.WNOHANG) -> None:
        """Tell of every process that has ended. What it left behind is killed while its number cannot be another's yet."""
        for pid, status in list(self.children.items()):
            if os.waitid(os.P_PID, pid, look) is None:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(BrokenPipeError):
                os.write(status, str(code).encode())
            os.close(status)
            del self.children[pid]

    def _end(self) -> None:
        for pid in self.children:
            for kill in (os.killpg, os.kill):  # one that was born just now leads no group yet
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
        self._reap(os.WEXITED | os.WNOWAIT)

    def _receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        """The next request with its descriptors; None when the session has closed its end."""
        line, descriptors = b"", []
        while not line.endswith(b"\n"):
            chunk, received, _, _ = socket.recv_fds(self.control, 65_536, DESCRIPTORS)
            descriptors += received
            if not chunk:
                return None, descriptors
            line += chunk
        return json.loads(line), descriptors

    def _send(self, reply: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the session is gone, which the next look at it tells
            self.control.sendall((json.dumps(reply) + "\n").encode())


def unfit() -> str:
    """Why a copy of this process would not be sound, or an empty string where it would."""
    threads = len(list(TASKS.iterdir())) - 1
    if threads:
        return f"what the suite imports started {threads} thread{'s' * (threads > 1)}"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if (cuda is not None and cuda.is_initialized()) or _has_open(CUDA_MEMORY_DEVICE):
        return "what the suite imports initialized CUDA"
    return ""


def _stamp(file: str) -> Stamp:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _has_open(device: str) -> bool:
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()) == device:
                return True
    return False


def _signalled_deaths() -> tuple[int, int]:
    """A pipe that can be read when a child has ended, whatever the suite did with the signal."""
    died, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    return died, told


def _become_worker(birth: Birth, own: int | None) -> None:
    """In a copy: be what a new interpreter would be by now. `own`: the threads that the suite has asked torch for."""
    os.setsid()
    os.dup2(birth.output, 1)
    os.dup2(birth.output, 2)
    os.close(birth.output)
    for name, value in birth.variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # What was to be done at the zygote's end (a temporary folder removed, say) is the zygote's, and its other copies need it.
    atexit._clear()
    finalizers: Any = weakref.finalize
    finalizers._registry.clear()
    finalizers._registered_with_atexit = False  # so that a new one registers again
    set_threads(birth.threads, own)


def main() -> None:
    """Be a zygote, and in each copy a worker."""
    zygote = Zygote(socket.socket(fileno=int(sys.argv[1])))
    birth = zygote.run()
    if birth is not None:
        _become_worker(birth, zygote.asked.threads)
        serve(birth.command, birth.reply, zygote.loaded)
    leave()


if __name__ == "__main__":
    main()
