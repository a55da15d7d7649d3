"""What the ops declare that they move, against hand counts; and that every op declares it."""

from __future__ import annotations

import torch

from frostline.kernels import matmul
from frostline.kernels.lm_head import fused, tiles
from frostline.kernels.norm import tiles as norms
from frostline.kernels.pointwise import tiles as pointwise
from frostline.kernels.traffic import size_of

ROWS, WIDTH, H, V = 128, 512, 64, 1000
SCALARS = (1.0, 1.0, False)
DECLARED = {**matmul.TRAFFIC, **tiles.TRAFFIC, **fused.TRAFFIC, **norms.TRAFFIC, **pointwise.TRAFFIC}


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype)


def narrow(*shape):
    return empty(*shape, dtype=torch.bfloat16)


def moved(op, *args):
    return DECLARED[op.overloadpacket](*args)


def test_every_op_declares_its_traffic():
    assert {op.__name__ for op in DECLARED} == {
        *tiles._SCHEMAS,
        *fused._SCHEMAS,
        *norms._SCHEMAS,
        *pointwise._SCHEMAS,
        "mm_wide",
    }


def test_a_tile_in_memory():
    x, row, targets = empty(ROWS, WIDTH), empty(ROWS), empty(ROWS, dtype=torch.int64)
    tile, fp32_row = 4 * ROWS * WIDTH, 4 * ROWS
    assert moved(tiles.reduce_tile, x, None, targets, row, row, None, None, 0, *SCALARS) == tile + 8 * ROWS + 4 * fp32_row
    # fp32 logits in, bf16 probabilities out; reference, total and moment in and out, rescale out
    given = (x, empty(WIDTH), targets, narrow(ROWS, WIDTH), row, row, row, None, row, 0, 40.0, *SCALARS)
    assert moved(tiles.fold_tile, *given) == tile + tile // 2 + 4 * WIDTH + 8 * ROWS + 6 * fp32_row + fp32_row
    # over the logits themselves
    given = (x, None, targets, row, row, row, row, None, None, None, None, None, 0, *SCALARS)
    assert moved(tiles.gradient_tile, *given) == 2 * tile + 8 * ROWS + 4 * fp32_row
    # the class weights are read as well, and the best column with its value is read and written
    given = (x, None, targets, row, row, row, row, None, None, row, empty(WIDTH), None, 0, *SCALARS)
    assert moved(tiles.gradient_tile, *given) == 2 * tile + 8 * ROWS + 5 * fp32_row + 4 * WIDTH
    given = (x, None, targets, row, row, None, empty(2, ROWS), 0, *SCALARS)
    assert moved(tiles.reduce_tile, *given) == tile + 8 * ROWS + 8 * fp32_row
    given = (x, None, targets, row, empty(WIDTH), row, 0, *SCALARS)
    assert moved(tiles.spread_tile, *given) == tile + 8 * ROWS + 3 * fp32_row + 4 * WIDTH


def test_rows_of_the_weight_that_are_picked():
    hidden, weight, targets, row = narrow(ROWS, H), narrow(V, H), empty(ROWS, dtype=torch.int64), empty(ROWS)
    assert moved(tiles.target_logits, hidden, weight, None, targets, row, *SCALARS) == 2 * 2 * ROWS * H + 8 * ROWS + 4 * ROWS
    given = (empty(ROWS, H), weight, targets, row, row, narrow(ROWS, H))
    assert moved(tiles.finish_rows, *given) == (4 + 2 + 2) * ROWS * H + (8 + 4 + 4) * ROWS


def test_factors():
    values, one = narrow(ROWS, H), torch.ones(())
    assert moved(tiles.rescale_rows, values, empty(ROWS)) == 4 * ROWS, "rows are not touched where the factor is 1"
    assert moved(tiles.scaled_rows, values, one.expand(ROWS), narrow(ROWS, H)) == 2 * 2 * ROWS * H + 4


def test_a_tile_that_is_made_in_its_product():
    hidden, weight, targets, row = narrow(ROWS, H), narrow(WIDTH, H), empty(ROWS, dtype=torch.int64), empty(ROWS)
    operands, workspace = 2 * (ROWS + WIDTH) * H, empty(3 * ROWS * 2 + 1)
    partials = 2 * 2 * ROWS * 2 * 4  # a maximum and a sum of two column tiles, written and read
    given = (hidden, weight, None, targets, narrow(ROWS, WIDTH), row, row, None, None, row, workspace, 0, 40.0, *SCALARS)
    assert moved(fused.fold_logits, *given) == operands + 2 * ROWS * WIDTH + (8 + 4 + 16) * ROWS + partials
    given = (hidden, weight, None, targets, empty(ROWS, WIDTH), row, row, None, None, workspace, 0, *SCALARS)
    assert moved(fused.reduce_logits, *given) == operands + 4 * ROWS * WIDTH + (8 + 16) * ROWS + partials
    given = (hidden, weight, None, targets, row, row, row, row, None, None, narrow(ROWS, WIDTH), 0, *SCALARS)
    assert moved(fused.gradient_logits, *given) == operands + 2 * ROWS * WIDTH + (8 + 16) * ROWS


def test_a_product():
    a, b, out = narrow(ROWS, H), narrow(H, WIDTH), empty(ROWS, WIDTH)
    once = 2 * (ROWS + WIDTH) * H + 4 * ROWS * WIDTH
    assert DECLARED[torch.ops.frostline.mm_wide](a, b, out, False) == once
    assert DECLARED[torch.ops.frostline.mm_wide](a, b, out, True) == once + 4 * ROWS * WIDTH


NORM = (1e-6, 0.0)  # eps, offset


def test_a_norm_forward():
    x, weight = narrow(ROWS, WIDTH), empty(WIDTH)
    whole, stats = 2 * ROWS * WIDTH, 4 * ROWS
    op = torch.ops.frostline.norm.default
    assert moved(op, x, None, weight, None, *NORM, False, True, False) == 2 * whole + 4 * WIDTH
    assert moved(op, x, x, weight, weight, *NORM, True, False, True) == 4 * whole + 2 * 4 * WIDTH + 2 * stats


def test_a_norm_backward():
    dy, stats, weight = narrow(ROWS, WIDTH), empty(ROWS), empty(WIDTH)
    whole, row, op = 2 * ROWS * WIDTH, 4 * WIDTH, torch.ops.frostline.norm_backward.default
    frozen = moved(op, dy, None, dy, weight, stats, *NORM, False, True, True, None, None)
    assert frozen == 3 * whole + 4 * ROWS + row, "two tensors read, one written"
    assert moved(op, dy, dy, dy, weight, stats, *NORM, False, True, True, None, None) == frozen + whole
    # tiles of 8 rows: 16 programs, each of which writes two fp32 rows that are read once; and the gradients, one in bf16
    trained = moved(op, dy, None, dy, weight, stats, *NORM, True, False, True, torch.float32, torch.bfloat16)
    assert trained == frozen + 2 * 16 * 2 * row + row + row // 2
    alone = moved(op, dy, dy, dy, weight, stats, *NORM, False, True, False, torch.float32, None)
    assert alone == 2 * whole + 4 * ROWS + row + 2 * 16 * row + row, "the sum's gradient goes to the input alone"
    nothing = narrow(0, WIDTH)
    assert moved(op, nothing, None, nothing, weight, empty(0), *NORM, False, True, True, torch.float32, None) == 2 * row


def test_a_norm_in_chunks_reads_its_rows_twice():
    rows, columns, chunks = 3, 20000, 5
    dy, weight, stats = narrow(rows, columns), empty(columns), empty(rows)
    whole, sums = 2 * rows * columns, 2 * 4 * rows * chunks
    given = (dy, None, weight, None, *NORM, False, True, True)
    assert moved(torch.ops.frostline.norm.default, *given) == 3 * whole + 4 * columns + 4 * rows + sums
    given = (dy, None, dy, weight, stats, *NORM, False, True, True, None, None)
    assert moved(torch.ops.frostline.norm_backward.default, *given) == 5 * whole + 2 * (4 * columns + 4 * rows) + sums


def test_what_is_expanded_is_read_once():
    assert size_of(torch.ones(1).expand(1000), None, torch.ones(3)) == 4 + 12


def test_pointwise_ops_read_and_write_each_value_once():
    q, k, table = narrow(2, 8, 16, 64), narrow(2, 2, 16, 64), narrow(1, 16, 64)
    ops = torch.ops.frostline
    assert moved(ops.rotate.default, q, k, table, table, False) == 2 * (2 * q.numel() + 2 * k.numel() + 2 * table.numel())
    assert moved(ops.rotate.default, None, k, table, table, True) == 2 * (2 * k.numel() + 2 * table.numel())
    gate, one = narrow(ROWS, WIDTH), 2 * ROWS * WIDTH
    assert moved(ops.swiglu.default, gate, gate) == 3 * one
    assert moved(ops.swiglu_backward.default, gate, gate, gate, True, True) == 5 * one
    assert moved(ops.swiglu_backward.default, gate, gate, gate, False, True) == 3 * one  # up is not read
