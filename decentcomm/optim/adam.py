"""Decentralized Adam and AdamW (algorithms.md sections 1 and 2): adapt while combining.

x(t+1) = sum_j W_ij x_j(t) - lr * m^ / (sqrt(v^) + eps), where the neighbours' x_j(t) were there when step t began.
Moments are never mixed. With `accumulate=s` the moments are updated every s steps by the mean gradient, while
parameters move at each.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT

from decentcomm._C import AdamSettings, Incoming, mix_adam
from decentcomm.optim.base import Decentralized
from decentcomm.optim.checks import drop_torch_options, require_range
from decentcomm.optim.partition import Partition


class DAdam(Decentralized):
    """Decentralized Adam; weight decay is added to the gradient, as torch.optim.Adam does.

    Args:
        params: As for torch.optim.Adam.
        lr: Learning rate.
        betas: Decay rates of the moments.
        eps: Added to the square root of the second moment.
        weight_decay: Coefficient of the decay.
        accumulate: s of AccumAdam: the moments are updated every s steps. Published: 4 at 8 workers, 8 at 16 and 32.
        options: Of `Decentralized`: topology, module, wire_dtype, max_grad_norm, in_backward and more. torch's foreach
            and fused mean nothing here; amsgrad and maximize are refused.
    """

    DECOUPLED: ClassVar[bool] = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        accumulate: int = 1,
        **options: Any,
    ) -> None:
        require_range("lr", float(lr), 0.0)
        require_range("betas[0]", betas[0], 0.0, 1.0)
        require_range("betas[1]", betas[1], 0.0, 1.0)
        require_range("eps", eps, 0.0)
        require_range("weight_decay", weight_decay, 0.0)
        require_range("accumulate", accumulate, 1)
        self.accumulate = int(accumulate)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, **drop_torch_options(options))

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "accumulate": self.accumulate}

    def _state_names(self) -> tuple[str, ...]:
        names = ("exp_avg", "exp_avg_sq")
        return (*names, "mean_grad") if self.accumulate > 1 else names

    def _update(self, part: Partition, bucket: int, incoming: Incoming, grad_scale: float) -> bool:
        settings = [
            AdamSettings(
                float(g["lr"]), float(g["betas"][0]), float(g["betas"][1]), g["eps"], g["weight_decay"], self.DECOUPLED
            )
            for g in self.param_groups
        ]
        mean, square, mean_grad = (part.state_pointer(n, bucket) for n in ("exp_avg", "exp_avg_sq", "mean_grad"))
        masters, threads = part.master_pointers(bucket, self.steps), torch.get_num_threads()
        state = (mean, square, mean_grad, self.accumulate)
        return mix_adam(incoming, part.table(bucket), settings, *state, masters, grad_scale, threads)


class DAdamW(DAdam):
    """Decentralized AdamW: the decay shrinks the mixed parameters and does not enter the moments.

    Arguments as `DAdam`.
    """

    DECOUPLED: ClassVar[bool] = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        accumulate: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, accumulate=accumulate, **options)
