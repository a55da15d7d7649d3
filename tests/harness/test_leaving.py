"""What an interrupted command leaves behind: nothing, wherever the interrupt meets it."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from frostline.harness import leaving
from frostline.harness.isolation import Spawned
from frostline.harness.leaving import ends_with_us, has_ended, uninterrupted

NAP = [sys.executable, "-c", "import time; time.sleep(60)"]
LEAVES = """
import os, signal, subprocess, sys, time
from frostline.harness import isolation, leaving

born = subprocess.Popen._execute_child

def interrupted(self, *arguments, **named):
    born(self, *arguments, **named)
    print(self.pid, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)  # the interrupt is due now, before anybody knows of the process

subprocess.Popen._execute_child = interrupted
try:
    isolation.Spawned([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
except KeyboardInterrupt:
    leaving.end_all()
    os._exit(130)
"""


@pytest.mark.usefixtures("interruptible")
def test_a_process_that_is_born_at_the_interrupt_is_ended():
    done = subprocess.run([sys.executable, "-P", "-c", LEAVES], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_for_the_block_and_no_longer():
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("the rest of the block")
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_thread_may_start_a_process_and_who_ignores_interrupts_goes_on_to():
    started = []
    thread = threading.Thread(target=lambda: started.append(Spawned(NAP, start_new_session=True)))
    thread.start()
    thread.join()
    started[0].end()
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, usual)


def test_all_that_is_left_is_ended_once_and_the_last_first(monkeypatch):
    monkeypatch.setattr(leaving, "_living", [])
    monkeypatch.setattr(leaving.signal, "signal", lambda *_: None)
    ended = []
    ends = [lambda number=number: ended.append(number) for number in range(3)]
    ends.append(lambda: 1 / 0)
    for end in ends:
        ends_with_us(end)
    has_ended(ends[1])
    has_ended(ends[1])
    leaving.end_all()
    leaving.end_all()
    assert ended == [2, 0]


def test_an_ended_process_is_forgotten():
    before = len(leaving._living)
    process = Spawned(NAP, start_new_session=True)
    assert len(leaving._living) == before + 1
    process.end()
    assert len(leaving._living) == before
