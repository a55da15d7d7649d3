"""The step in float64, and what plain torch gets wrong in the dtype of the case: both by blocks of rows, so that any size fits.

The yardstick is eager code's arithmetic: each block's logits, softmax and products in the dtype of the case, rounded as eager
code rounds them. Only the sums over blocks are kept wider.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import linear

from frostline.suites.next_token.plain import Question, labels_of, loss_of_products
from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.plain import wide

_ROWS = 512  # a float64 block of 512 x 202,048 logits takes 0.8 GiB, and a few of them are alive at a time


class Reference:
    """The right outputs of a step, and the yardstick for those of its implementations.

    Args:
        batch: the step's; the mean is over the tokens that its mask counts.
        question: its loss.
    """

    def __init__(self, batch: Batch, question: Question) -> None:
        self.batch, self.question = batch, question

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        """Every output in float64: the loss of each token (0 where it is ignored), their mean, the gradients of the leaves."""
        return self._outputs(torch.float64)

    def yardstick(self) -> dict[str, Tensor]:
        """What plain torch gives in the dtype of the case.

        A scalar may be right by luck, so the loss stands here with the errors of its tokens added up without cancelling, and
        with a rounding of their sum.
        """
        exact, found = self.outputs, self._outputs(self.batch.hidden.dtype)
        slack = (found["losses"] - exact["losses"]).abs().sum() / self.batch.active
        rounding = torch.finfo(found["losses"].dtype).eps * exact["loss"].abs()
        return found | {"loss": exact["loss"] + slack + rounding}

    def _outputs(self, dtype: torch.dtype) -> dict[str, Tensor]:
        batch, labels = self.batch, labels_of(self.batch).flatten()
        hidden, weight = batch.hidden.detach().flatten(0, 1).to(dtype), batch.weight.detach().to(dtype)  # [N, H], [V, H]
        sums = torch.promote_types(dtype, torch.float32)
        found = {name: torch.zeros_like(leaf, dtype=sums) for name, leaf in batch.leaves.items()}
        losses = []
        for first in range(0, hidden.shape[0], _ROWS):
            rows = slice(first, first + _ROWS)
            of_rows, d_logits = self._of_products(linear(hidden[rows], weight), labels[rows])
            losses.append(of_rows)
            found["d_hidden"].view_as(hidden)[rows] = (d_logits @ weight).to(sums)
            if "d_weight" in found and dtype == sums:
                found["d_weight"].addmm_(d_logits.t(), hidden[rows])
            elif "d_weight" in found:
                found["d_weight"] += d_logits.t() @ hidden[rows]
        of_tokens = torch.cat(losses).view(batch.targets.shape)
        gradients = {name: value.to(dtype) for name, value in found.items()}
        return {"losses": of_tokens, "loss": of_tokens.sum() / batch.active, **gradients}

    def _of_products(self, products: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The losses of some rows, and the gradient of the step's loss with respect to their products, in these' dtype."""
        leaf = wide(products).requires_grad_()
        with torch.enable_grad():
            losses = loss_of_products(leaf, labels, self.question, "none")
            (d_products,) = torch.autograd.grad(losses.sum() / self.batch.active, leaf)
        return losses.detach(), d_products.to(products.dtype)
