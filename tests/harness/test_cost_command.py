"""`frostline cost` as typed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from frostline.harness.cost import predict
from frostline.suites.grpo import grpo


def test_the_command_tells_what_a_figure_is_made_of(frostline: Callable[..., Any], tmp_path: Any) -> None:
    options = ["--preset", "small", "--set", "vocab=4096", "--set", "lm_head=frozen", "--implementations", "pruned,torch"]
    markdown = tmp_path / "cost.md"
    command = ["cost", "grpo", *options, "--device", "h200", "--detail", "--top", "3", "--markdown", markdown]
    done = frostline(*command, "--db", tmp_path / "f.db")
    assert done.returncode == 0, done.stderr
    flat = " ".join(done.stdout.split())
    assert "time at best, H200 SXM" in flat and "an estimate, and the least it can be" in flat
    assert "figures of the H200 SXM: NVIDIA H200" in flat
    assert "pruned: peak " in flat and "reached at operator " in flat and "frostline/kernels/lm_head/engine.py:" in flat
    assert "frostline.mm_wide" in flat or "aten.mm" in flat
    assert markdown.read_text().count("|---") > 4
    assert "worker.py" not in flat


def test_the_command_refuses_a_device_that_it_does_not_know(frostline: Callable[..., Any], tmp_path: Any) -> None:
    done = frostline("cost", "grpo", "--preset", "small", "--device", "abacus", "--db", tmp_path / "f.db")
    assert done.returncode == 2
    assert "--device: got 'abacus'" in done.stderr


def test_a_prediction_is_measured_beside(frostline: Callable[..., Any], tmp_path: Any) -> None:
    options = ["--preset", "small", "--set", "layers=0", "--set", "masked=0.5", "--set", "lm_head=frozen", "--target", "cpu"]
    store = ["--db", tmp_path / "f.db"]
    done = frostline("cost", "cost_model", *options, "--implementations", "torch,known", "--measure", *store)
    assert done.returncode == 0, done.stderr
    assert "peaks are off by 0.00% at most, above the inputs by 0.00%" in done.stdout
    assert "FLOPs are equal in 2 of 2" in done.stdout
    chart = frostline("chart", "validation", "--out", tmp_path, *store)
    assert chart.returncode == 0, chart.stderr
    assert "2 of 2 predicted peaks are within 2%" in chart.stdout
    assert (tmp_path / "validation.png").stat().st_size > 10_000


def test_a_gpu_is_not_measured_where_there_is_none(frostline: Callable[..., Any], tmp_path: Any) -> None:
    done = frostline("cost", "cost_model", "--preset", "small", "--measure", "--db", tmp_path / "f.db", env={"PATH": ""})
    assert done.returncode == 2
    assert "--measure: there is no GPU here; add --target cpu" in done.stderr


def test_a_named_device_takes_its_own_branches(frostline: Callable[..., Any], tmp_path: Any) -> None:
    options = ["--preset", "small", "--set", "vocab=4096", "--set", "lm_head=frozen", "--set", "dtype=bfloat16"]
    shown = {}
    for name in ("h200", "a100"):
        done = frostline(
            "cost",
            "grpo",
            *options,
            "--implementations",
            "pruned",
            "--device",
            name,
            "--detail",
            "--db",
            tmp_path / f"{name}.db",
        )
        assert done.returncode == 0, done.stderr
        shown[name] = "frostline.fold_logits" in done.stdout
    assert shown == {"h200": True, "a100": False}


def test_a_suite_without_tensors_is_told_so_in_one_line(frostline: Callable[..., Any], tmp_path: Any) -> None:
    (tmp_path / "plain.py").write_text(
        "from frostline.harness import suite\n@suite(axes={'n': [1, 2]}, implementations=['one', 'two'])\n"
        "def plain(implementation, device, *, n):\n    return lambda: sorted(range(n))\n"
    )
    done = frostline("cost", tmp_path / "plain.py", "--db", tmp_path / "f.db")
    assert done.returncode == 4
    said = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    assert said == [
        "frostline: nothing could be predicted (error: the cost model needs tensors, and the step ran no operator of torch's; "
        "measure it: frostline run, frostline compare)"
    ]


def test_the_largest_size_that_fits(frostline: Callable[..., Any], tmp_path: Any) -> None:
    case = {axis: values[0] for axis, values in grpo.axes.items()} | {
        "vocab": 4096,
        "hidden": 256,
        "dtype": "float32",
        "batch": 2,
    }

    def peak(size: int) -> float:
        assert grpo.target_device is not None
        build = partial(grpo.function, "torch", "cpu", **case | {"seq_len": size})
        return predict(build, context=grpo.target_device("cuda"), device="cuda").figures["peak_allocated"]

    options = ["--preset", "small", "--set", "vocab=4096", "--implementations", "torch", "--markdown", tmp_path / "fits.md"]
    done = frostline("cost", "grpo", *options, "--fits", "1GiB")
    assert done.returncode == 0, done.stderr
    rows = [line.split("|") for line in (tmp_path / "fits.md").read_text().splitlines() if "| torch |" in line]
    sizes = [int(row[3].replace(",", "")) for row in rows]
    assert [row[1].strip() for row in rows] == ["frozen", "trainable"]
    assert peak(sizes[0]) <= 2**30 < peak(sizes[0] + 1)
    assert sizes[1] <= sizes[0] and not (tmp_path / "frostline.db").exists()


def test_what_cannot_be_fitted_is_one_line(frostline: Callable[..., Any]) -> None:
    for options, said in [
        (["--fits", "lots"], "--fits: got 'lots', wanted a size like 512MiB"),
        (["--fits", "1GiB", "--detail"], "--fits tells sizes alone: leave out --measure and --detail"),
        (["--axis", "batch"], "--axis batch: says of which axis --fits tells the largest size; add --fits 80GiB"),
        (["--fits", "1GiB", "--axis", "dtype"], "--axis: dtype of grpo is no whole number; vocab, seq_len, batch, hidden are"),
    ]:
        done = frostline("cost", "grpo", "--preset", "small", *options)
        assert done.returncode == 2 and said in " ".join(done.stderr.split()), done.stderr
