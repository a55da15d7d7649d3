"""What is read of a machine, on fabricated trees of /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from frostline.harness.surroundings import Busy, Limits, Moment, between, host_with, read_host, read_moment

STAT = "cpu  100 0 50 800 10 0 5 {stolen} 0 0\ncpu0 1 0 0 0 0 0 0 0 0 0\n"
PROCESS = "{pid} ({name}) R 1 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0 1 0 0 0 0"

TREE = {
    "proc/cpuinfo": "model name\t: Test CPU\nflags\t\t: fpu hypervisor sse\n",
    "proc/loadavg": "0.50 0.40 0.30 1/100 4242\n",
    "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 100 kB\nSwapFree: 75 kB\n",
    "sys/devices/system/cpu/online": "0-2,4\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,4\n",
    "sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1\n",
    "sys/devices/system/cpu/cpu4/topology/thread_siblings_list": "0,4\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    "sys/class/power_supply/BAT0/status": "Discharging\n",
}


@pytest.fixture
def tree(tmp_path: Path):
    def write(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


def test_a_machine_is_read(tree):
    host = host_with(tree(TREE), (0, 1, 4))
    assert (host.cpu, host.host_cores, host.load, host.virtual) == ("Test CPU", 4, 0.5, True)
    assert (host.governors, host.turbo, host.hugepages, host.on_battery) == (["powersave", "performance"], True, "always", True)
    assert host.siblings == [(0, 4)]
    assert (host.memory, host.memory_available, host.swap_used) == (1_024_000, 614_400, 25_600)


def test_siblings_outside_the_usable_cores_share_with_nobody(tree):
    assert host_with(tree(TREE), (0, 1)).siblings == []


@pytest.mark.parametrize(("file", "turbo"), [("intel_pstate/no_turbo", False), ("cpufreq/boost", True)])
def test_both_drivers_tell_of_turbo(tree, file, turbo):
    assert host_with(tree({f"sys/devices/system/cpu/{file}": "1\n"}), (0,)).turbo is turbo


def test_what_is_not_told_is_not_known(tmp_path):
    host = host_with(tmp_path, (0, 1))
    assert host.limits == Limits()
    unknown = {"cpu", "host_cores", "load", "turbo", "memory", "swap_used", "hugepages", "on_battery", "virtual", "container"}
    assert all(getattr(host, name) is None for name in unknown)
    assert read_moment(tmp_path, 1.0) == Moment(1.0)
    interval = between(Moment(1.0), Moment(2.0), 100, 1)
    assert (interval.busy, interval.stolen, interval.throttled, interval.swapped) == (None, None, None, None)


def test_this_machine_can_be_read():
    assert read_host().usable and read_host().system


def test_the_tightest_limit_of_version_2_groups_counts(tree):
    root = tree({
        "proc/self/cgroup": "0::/kubepods/pod1/app\n",
        "sys/fs/cgroup/kubepods/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/kubepods/pod1/cpu.max": "max 100000\n",
        "sys/fs/cgroup/kubepods/pod1/app/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/kubepods/pod1/app/cpu.stat": "usage_usec 5\nnr_throttled 7\n",
        "sys/fs/cgroup/kubepods/pod1/memory.max": "1000\n",
        "sys/fs/cgroup/kubepods/pod1/memory.current": "900\n",
        "sys/fs/cgroup/kubepods/pod1/memory.stat": "inactive_file 300\n",
        "sys/fs/cgroup/memory.max": "max\n",
    })  # fmt: skip
    host = host_with(root, (0,))
    assert host.limits == Limits(1.5, 1000, 600)
    assert host.container == "kubepods"
    assert read_moment(root, 0.0).throttled == 7


def test_version_1_groups_and_their_way_to_say_unlimited(tree):
    root = tree({
        "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
    })  # fmt: skip
    assert host_with(root, (0,)).limits == Limits(0.5, None, None)


@pytest.mark.parametrize(("mark", "kind"), [(".dockerenv", "docker"), ("run/.containerenv", "podman")])
def test_a_container_is_known_by_its_marks(tree, mark, kind):
    assert host_with(tree({mark: ""}), (0,)).container == kind


def test_two_moments_tell_who_was_busy_and_what_was_stolen(tree):
    def moment(at, ticks, stolen, swapped, hot):
        root = tree({
            "proc/stat": STAT.format(stolen=stolen),
            "proc/vmstat": f"pswpin {swapped}\npswpout 1\n",
            "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": f"{hot}\n",
            "proc/10/stat": PROCESS.format(pid=10, name="a (very) odd name", user=ticks, system=5),
            "proc/11/stat": PROCESS.format(pid=11, name="us", user=10 * ticks, system=0),
        })  # fmt: skip
        return read_moment(root, at)

    first = moment(1.0, 100, 0, 4, 2)
    seen = between(first, moment(3.0, 160, 35, 10, 3), 100, own_pid=11)
    assert seen.busy == [Busy(10, "a (very) odd name", pytest.approx(0.3))]
    assert (seen.stolen, seen.swapped, seen.hot, seen.throttled) == (1.0, 6, 1, None)


def test_a_process_that_began_in_between_counts_from_its_beginning(tree):
    before = read_moment(tree({"proc/stat": STAT.format(stolen=0)}), 0.0)
    after = read_moment(tree({"proc/12/stat": PROCESS.format(pid=12, name="new", user=40, system=10)}), 1.0)
    assert between(before, after, 100, own_pid=1).busy == [Busy(12, "new", pytest.approx(0.5))]


@pytest.mark.parametrize(
    ("file", "text", "field"),
    [
        ("proc/loadavg", "- - -", "load"),
        ("proc/loadavg", "0,50 0,40", "load"),
        ("proc/loadavg", "nan 0 0", "load"),
        ("proc/loadavg", "\n", "load"),
        ("sys/devices/system/cpu/online", "none", "host_cores"),
        ("sys/devices/system/cpu/online", "0-99999999999", "host_cores"),
        ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "ff", "siblings"),
        ("proc/meminfo", "MemTotal: \u00b2 kB\nMemAvailable: x kB", "memory"),
        ("proc/meminfo", "SwapTotal: 1e3 kB\nSwapFree: -1 kB", "swap_used"),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", "\u00b2", "turbo"),
    ],
)
def test_what_cannot_be_read_is_not_known(tree, file, text, field):
    assert getattr(host_with(tree({**TREE, file: text}), (0, 1, 4)), field) is None


@pytest.mark.parametrize("text", ["100000 0", "100000 x", "max", "\u00b2 100000", "-1 100000"])
def test_a_quota_that_cannot_be_read_is_none(tree, text):
    assert host_with(tree({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": text}), (0,)).limits == Limits()


def test_words_among_counters_are_not_known(tree):
    words = PROCESS.format(pid=7, name="x", user="many", system=1)
    root = tree(
        {"proc/stat": "cpu  a b c d e f g h\n", "proc/7/stat": words, "proc/8x/stat": words, "proc/vmstat": "pswpin \u00b2"}
    )
    assert read_moment(root, 1.0) == Moment(1.0)
    assert between(Moment(0.0, stolen_ticks=5, hot=3), Moment(1.0, stolen_ticks=4, hot=2), 100, 1).hot is None, "went back"
