"""Which rows are computed: all of them, or only those that count, gathered without asking the device how many there are.

The host declares the number of active rows, or wishes that the device be asked for it once, which waits for what the device
has to do before (on the CPU it is read from the mask, which costs nothing there). The gather and the way back are ordinary
differentiable indexing, outside the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.kernels.lm_head.checks import ActiveRows, check_active_rows, is_fake, is_readable
from frostline.kernels.lm_head.tiles import INACTIVE


@dataclass(frozen=True)
class Rows:
    """The rows of a flat problem that are computed.

    Attributes:
        count: rows of the whole problem.
        active: bool [count], or None when every row counts.
        index: int64 [n], the rows to gather, `count` where fewer are active than declared; None to compute all rows.
    """

    count: int
    active: Tensor | None = None
    index: Tensor | None = None

    @staticmethod
    def of(count: int, active: Tensor | None, active_rows: ActiveRows, *, gather: bool = True) -> Rows:
        """Choose the rows.

        Args:
            count: rows of the whole problem.
            active: bool, `count` elements, or None.
            active_rows: their number where the host knows it, or "ask".
            gather: whether inactive rows may be left out at all.

        Raises:
            ValueError: a count out of range, or (on the CPU) one that is not the mask's.
        """
        check_active_rows(active_rows, count)
        if active is None:
            if active_rows not in (None, "ask", count):
                raise ValueError(
                    f"active_rows: got {active_rows!r} without a mask, wanted `active` to say which of {count} rows count"
                )
            return Rows(count)
        active = active.reshape(-1).bool()
        asked = active_rows == "ask" and gather and not is_fake(active)
        if asked or is_readable(active):
            found = int(active.sum())
            if active_rows is not None and active_rows != "ask" and found > active_rows:
                raise ValueError(f"active_rows: got {active_rows}, wanted {found}, the number of rows that are active")
            active_rows = found
            if found == count:
                return Rows(count)
        if not gather or active_rows is None or active_rows == "ask" or active_rows == count:
            return Rows(count, active)
        return Rows(count, active, torch.nonzero_static(active, size=active_rows, fill_value=count).squeeze(1))

    def together(self) -> Rows:
        """The same rows all computed, each beside its neighbours."""
        return Rows(self.count, self.active)

    def take(self, values: Tensor) -> Tensor:
        """The computed rows of `values` [count, ...]. Where fewer are active than declared, the last row is repeated."""
        if self.index is None:
            return values
        return values.index_select(0, self.index.clamp(max=max(self.count - 1, 0)))

    def take_counted(self, values: Tensor) -> Tensor:
        """`take`, with zeros where fewer rows are active than declared: a repeated row must not count twice."""
        taken = self.take(values)
        return taken if self.index is None else taken.masked_fill(self.index == self.count, 0)

    def whole(self, loss: Tensor) -> Tensor:
        """`loss`, or NaN where more rows are active than declared: their share is missing."""
        if self.index is None or self.active is None:
            return loss
        return torch.where(self.active.sum() > self.index.numel(), float("nan"), loss)

    def targets(self, targets: Tensor, vocab: int) -> Tensor:
        """Targets of the computed rows, int64: `INACTIVE` where a row does not count, `vocab` (never met: NaN) out of range."""
        flat = targets.reshape(-1).long()
        out_of_range = (flat < 0) | (flat >= vocab)
        if self.active is not None:
            out_of_range &= self.active
        if is_readable(flat) and bool(out_of_range.any()):
            row = int(out_of_range.nonzero()[0, 0])
            raise ValueError(f"targets: got {int(flat[row])} in row {row}, wanted 0 to {vocab - 1} in every active row")
        flat = flat.masked_fill(out_of_range, vocab)
        if self.active is not None:
            flat = flat.masked_fill(~self.active, INACTIVE)
        taken = self.take(flat)
        return taken if self.index is None else taken.masked_fill(self.index == self.count, INACTIVE)

    def put(self, values: Tensor, left_out: float = float("nan")) -> Tensor:
        """`values` [n] at their places in [count], zero elsewhere; `left_out` in active rows beyond the declared count."""
        if self.index is None or self.active is None:
            return values
        base = values.new_zeros(self.count + 1)
        base[: self.count].masked_fill_(self.active, left_out)
        return base.index_copy(0, self.index, values)[: self.count]

    @property
    def gathered_from(self) -> int:
        """How many rows the computed ones are gathered from; 0 where all are computed."""
        return 0 if self.index is None else self.count

    @property
    def masked(self) -> bool:
        """Whether some computed rows may not count."""
        return self.active is not None
