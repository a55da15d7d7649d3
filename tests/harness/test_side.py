from __future__ import annotations

import json
from pathlib import Path

from frostline.harness.side import Side, Source

GIT = Source("my/branch", "git", "0123456789abcdef", Path("/cache/packages"), ("frostline.kernels",), {"commit": "f" * 40})
INSTALLED = Source("installed", "installed", "fedcba9876543210")


def test_a_side_survives_json() -> None:
    for side in (Side(1, "pruned", GIT), Side(0, "unpruned", INSTALLED, baseline=True)):
        assert Side.from_json(json.loads(json.dumps(side.to_json()))) == side


def test_the_record_keeps_what_the_store_needs() -> None:
    record = Side(1, "pruned", GIT, baseline=True).record()
    assert (record.position, record.implementation, record.baseline) == (1, "pruned", True)
    assert (record.source, record.source_kind, record.source_id) == ("my/branch", "git", "0123456789abcdef")
    assert record.detail == {"targets": ["frostline.kernels"], "commit": "f" * 40}
    json.dumps(dict(record.detail))


def test_labels_name_the_source_unless_it_is_installed() -> None:
    assert Side(0, "pruned", GIT).label == "pruned @ my/branch"
    assert Side(0, "pruned", INSTALLED).label == "pruned"
