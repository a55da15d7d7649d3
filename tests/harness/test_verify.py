"""Errors against a reference, and the bound that plain code's own error sets."""

from __future__ import annotations

import math

import pytest
import torch

from frostline.harness import Step
from frostline.harness.verify import FLOOR, verify_step


def step(output, reference, yardstick=None, **fields):
    return Step(
        run=lambda: None,
        outputs=lambda: {"x": output},
        reference=lambda: {"x": reference},
        yardstick=None if yardstick is None else lambda: {"x": yardstick},
        **fields,
    )


def test_the_error_is_relative_to_the_reference_and_formed_in_its_precision():
    reference = torch.tensor([3.0, 4.0], dtype=torch.float64)
    (error,) = verify_step(step(reference.float() + torch.tensor([0.0, 0.5]), reference))
    assert error.relative == pytest.approx(0.1) and error.maximum == pytest.approx(0.5) and not error.ok


def test_the_yardstick_sets_the_bound():
    reference = torch.linspace(1, 2, 100, dtype=torch.float64)
    rounded = reference.bfloat16()
    (error,) = verify_step(step(rounded, reference, yardstick=rounded))
    assert error.allowed == pytest.approx(2 * error.relative) and error.ok
    (worse,) = verify_step(step(rounded * 1.05, reference, yardstick=rounded))
    assert not worse.ok


def test_a_yardstick_that_is_exact_by_luck_leaves_room_for_rounding():
    one = torch.ones(1, dtype=torch.float64)
    (error,) = verify_step(step(one * (1 + 5e-8), one, yardstick=one))
    assert error.allowed == FLOOR and error.ok


def test_a_yardstick_that_overflowed_allows_nothing():
    one = torch.ones(4, dtype=torch.float64)
    (error,) = verify_step(step(one * 1e6, one, yardstick=one * math.inf))
    assert error.allowed == 1e-5 and not error.ok


def test_against_a_reference_of_zero_the_error_is_absolute():
    zero = torch.zeros(4, dtype=torch.float64)
    (error,) = verify_step(step(zero + 1e6, zero, yardstick=zero + 1e-12))
    assert error.relative == pytest.approx(2e6) and not error.ok


def test_a_complex_output_is_not_cut_down_to_a_real_one():
    with pytest.raises(ValueError, match="output 'x' is complex, the reference is not"):
        verify_step(step(torch.ones(2) * 1j, torch.zeros(2, dtype=torch.float64)))


def test_nan_is_wrong_and_zero_equals_zero():
    zero = torch.zeros(3, dtype=torch.float64)
    (same,) = verify_step(step(zero.float(), zero))
    assert same.relative == 0 and same.ok
    (nan,) = verify_step(step(zero * math.nan, zero))
    assert not nan.ok


def test_outputs_and_reference_must_speak_of_the_same():
    with pytest.raises(ValueError, match="output 'x' has shape"):
        verify_step(step(torch.zeros(2), torch.zeros(3)))
    one = Step(run=lambda: None, outputs=lambda: {"x": 1.0}, reference=lambda: {"y": 1.0})
    with pytest.raises(ValueError, match=r"outputs are \['x'\]"):
        verify_step(one)
