"""How a norm's rows are laid out, and how its kernels are launched: what can be told without a GPU."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from frostline.kernels import launch
from frostline.kernels.norm import tiles_triton
from frostline.kernels.norm.geometry import H200, WIDEST, Gpu, Tile, most_walkers, reduction, tile_of, walk_of, walkers


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("columns", [1, 7, 100, 256, 1000, 4096, 5120, 8192, 16384, 16385, 20000, 262144])
def test_tiles_cover_a_row(columns, itemsize):
    tile = tile_of(columns, itemsize)
    assert tile.block & (tile.block - 1) == 0 and tile.block <= WIDEST
    assert (tile.chunks - 1) * tile.block < columns <= tile.chunks * tile.block
    assert tile.chunks <= tile.padded_chunks < 2 * tile.chunks
    assert tile.rows == 1 or tile.chunks == 1
    assert 1 <= tile.warps <= 32
    assert tile.rows * tile.block <= 32 * 32 * tile.warps  # values of a thread: several tiles of them must fit its registers


@pytest.mark.parametrize(
    ("columns", "tile", "walk"),
    [(256, Tile(16, 256, 1, 4), (2, 3)), (4096, Tile(1, 4096, 1, 8), (2, 3)), (8192, Tile(1, 8192, 1, 8), (1, 3))],
)
def test_what_the_sweep_chose(columns, tile, walk):
    assert tile_of(columns, 2) == tile and walk_of(tile, 4) == walk
    assert most_walkers(tile, 4) == 132 * walk[0]


A10G, TURING = Gpu(80, 99 * 1024, 65536), Gpu(40, 64 * 1024, 65536)


@pytest.mark.parametrize("gpu", [H200, A10G, TURING, Gpu(2, 48 * 1024, 32768)])
@pytest.mark.parametrize("columns", [1, 256, 4096, 8192, 16384, 262144])
@pytest.mark.parametrize(("itemsize", "loaded"), [(2, 4), (2, 6), (4, 8), (4, 12)])
def test_a_walk_fits_the_gpu(columns, itemsize, loaded, gpu):
    tile = tile_of(columns, itemsize)
    programs, stages = walk_of(tile, loaded, gpu)
    assert 1 <= stages <= 3 and programs >= 1
    assert stages == 1 or stages * tile.rows * tile.block * loaded <= gpu.shared_bytes
    assert programs == 1 or programs * tile.warps * 32 * 128 <= gpu.registers
    assert 1 <= most_walkers(tile, loaded, gpu) <= gpu.multiprocessors * programs


def test_a_smaller_gpu_loads_less_ahead():
    """Rows of 16,384 in bf16 are 64 KiB of x and dy: three of them fit on an H200 alone."""
    stages = {gpu: walk_of(tile_of(16384, 2), 4, gpu)[1] for gpu in (H200, A10G, TURING)}
    assert stages == {H200: 3, A10G: 1, TURING: 1} and walk_of(tile_of(4096, 2), 4, TURING) == (2, 3)


def test_a_device_is_asked_once(monkeypatch):
    asked = []

    def properties(device):
        asked.append(device)
        return SimpleNamespace(multi_processor_count=80, shared_memory_per_block_optin=99 * 1024, regs_per_multiprocessor=65536)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    tiles_triton.gpu_of.cache_clear()
    assert [tiles_triton.gpu_of(7) for _ in range(3)] == [A10G] * 3 and asked == [7]
    tiles_triton.gpu_of.cache_clear()


@pytest.mark.parametrize("tiles", [1, 2, 131, 132, 133, 1000, 8192])
def test_walkers_share_evenly_and_no_more_than_needed(tiles):
    for most in (1, 3, 132, 264):
        programs = walkers(tiles, most)
        share = -(-tiles // programs)
        assert 1 <= programs <= min(tiles, most)
        assert share == -(-tiles // most)
        assert programs == 1 or -(-tiles // (programs - 1)) > share


@pytest.mark.parametrize("columns", [1, 256, 4095, 4096, 262144])
def test_a_reduction_has_a_tile_of_one_size(columns):
    block, depth, _ = reduction(columns)
    assert block * depth == 4096


class Kernel:
    """Stands for a `triton.jit` function: records the launches that came through the JIT."""

    def __init__(self, compiled=None):
        self.compiled, self.calls = compiled, []

    def __getitem__(self, grid):
        def run(*args, **options):
            self.calls.append((grid, args, options))
            return self.compiled

        return run


class Compiled:
    """Stands for what the JIT returns."""

    function, packed_metadata = "function", "metadata"

    def __init__(self):
        self.calls = []

    def run(self, *args):
        self.calls.append(args)


@pytest.fixture
def device(monkeypatch):
    """A CUDA device that is not there: its index, and the one that is current."""
    current = SimpleNamespace(index=0)
    monkeypatch.setattr(launch, "_current_device", lambda: current.index)
    monkeypatch.setattr(launch, "_current_stream", lambda index: f"stream of {index}")
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(launch.triton, "__version__", "3.6.0")
    return current


def aligned(offset=0):
    memory = torch.empty(64)
    first = (-memory.data_ptr() % launch._ALIGNMENT) // 4
    return memory[first + offset : first + offset + 8]


def made(kernel, device=0):
    return launch.Launcher(kernel, {"BLOCK": 8}, 4, device)


def test_the_first_launch_compiles_and_the_next_go_straight(device):
    compiled = Compiled()
    kernel = Kernel(compiled)
    launcher = made(kernel)
    x, y = aligned(), aligned()
    launcher(2, 3, (x, None, y), (5, 0.5))
    assert kernel.calls == [((2, 3), (x, None, y, 5, 0.5), {"BLOCK": 8, "num_warps": 4, "enable_fp_fusion": False})]
    assert not compiled.calls
    launcher(7, 1, (y, None, x), (6, 0.25))
    assert len(kernel.calls) == 1
    addresses = (y.data_ptr(), None, x.data_ptr())
    assert compiled.calls == [(7, 1, 1, "stream of 0", "function", "metadata", None, None, None, *addresses, 6, 0.25, 8)]


def test_what_is_not_aligned_goes_through_the_jit(device):
    compiled = Compiled()
    kernel = Kernel(compiled)
    launcher = made(kernel)
    launcher(1, 1, (aligned(1),), ())  # compiled for such pointers: not to be kept
    launcher(1, 1, (aligned(),), ())
    launcher(1, 1, (aligned(1),), ())
    assert len(kernel.calls) == 3 and not compiled.calls
    launcher(1, 1, (aligned(),), ())
    assert len(kernel.calls) == 3 and len(compiled.calls) == 1


def test_another_current_device_goes_through_the_jit(device):
    compiled = Compiled()
    kernel = Kernel(compiled)
    launcher = made(kernel)
    launcher(1, 1, (aligned(),), ())
    device.index = 1
    launcher(1, 1, (aligned(),), ())
    assert len(kernel.calls) == 2 and not compiled.calls


def test_a_compiled_kernel_of_another_shape_is_never_called(device):
    kernel = Kernel(SimpleNamespace(run=None))
    launcher = made(kernel)
    for _ in range(3):
        launcher(1, 1, (aligned(),), ())
    assert len(kernel.calls) == 3


@pytest.mark.parametrize(
    ("version", "known"), [("3.6.0", True), ("3.7.1", True), ("3.5.1", False), ("3.8.0", False), ("4.0", False)]
)
def test_an_unknown_release_of_triton_goes_through_the_jit(device, monkeypatch, version, known):
    assert launch.known_release(version) == known
    monkeypatch.setattr(launch.triton, "__version__", version)
    compiled = Compiled()
    kernel = Kernel(compiled)
    launcher = made(kernel)
    for _ in range(2):
        launcher(1, 1, (aligned(),), ())
    assert (len(kernel.calls), len(compiled.calls)) == ((1, 1) if known else (2, 0))


def test_on_a_cpu_the_interpreter_is_called_every_time():
    kernel = Kernel()
    launcher = made(kernel, device=-1)
    for _ in range(2):
        launcher(1, 1, (torch.empty(3),), (1,))
    assert len(kernel.calls) == 2
