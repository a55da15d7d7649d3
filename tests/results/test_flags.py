from __future__ import annotations

from frostline.results.flags import SAME_CODE, code_flags
from frostline.results.record import SideRecord


def side(position: int, *beside: str) -> SideRecord:
    return SideRecord(
        position, "pruned", "HEAD", "git", "0123", position == 0, {"installed_with": list(beside)} if beside else {}
    )


def test_the_same_code_with_other_distributions_beside_it_is_worth_comparing() -> None:
    assert code_flags(side(1), side(0), [], []) == [SAME_CODE]
    assert code_flags(side(1, "einops==0.8.1"), side(0, "einops==0.8.1"), [], []) == [SAME_CODE]
    assert code_flags(side(1, "einops==0.8.1"), side(0, "einops==0.7.0"), [], []) == []
    assert code_flags(side(1, "einops==0.8.1"), side(0), [], []) == []
