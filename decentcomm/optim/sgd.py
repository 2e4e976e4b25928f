"""Decentralized SGD with momentum: x(t+1) = sum_j W_ij x_j(t) - lr * (momentum rule of torch.optim.SGD)."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from decentcomm._C import Incoming, SgdSettings, mix_sgd
from decentcomm.errors import ConfigError, UnsupportedError
from decentcomm.optim.base import Decentralized
from decentcomm.optim.checks import drop_torch_options, require_range
from decentcomm.optim.partition import Partition


class DSGD(Decentralized):
    """Decentralized SGD. Momentum buffers are never mixed.

    Args:
        params: As for torch.optim.SGD.
        lr: Learning rate.
        momentum: Momentum factor.
        dampening: Dampening of momentum.
        weight_decay: Added to the gradient, times the own parameters.
        nesterov: Nesterov momentum; needs momentum and no dampening.
        options: Of `Decentralized`: topology, module, wire_dtype, max_grad_norm, in_backward and more. torch's foreach
            and fused mean nothing here; amsgrad and maximize are refused.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **options: Any,
    ) -> None:
        require_range("lr", float(lr), 0.0)
        require_range("momentum", momentum, 0.0)
        require_range("dampening", dampening, 0.0)
        require_range("weight_decay", weight_decay, 0.0)
        if nesterov and (momentum == 0 or dampening != 0):
            raise ConfigError(f"nesterov needs momentum > 0 and dampening 0, not {momentum} and {dampening}")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults, **drop_torch_options(options))

    def _state_names(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if any(g["momentum"] != 0 for g in self.param_groups) else ()

    def _update(self, part: Partition, bucket: int, incoming: Incoming, grad_scale: float) -> bool:
        settings = [
            SgdSettings(float(g["lr"]), g["momentum"], g["dampening"], g["weight_decay"], g["nesterov"])
            for g in self.param_groups
        ]
        momentum = part.state_pointer("momentum_buffer", bucket)
        if not momentum and any(g["momentum"] != 0 for g in self.param_groups):
            raise UnsupportedError("momentum was 0 when this optimizer was made and cannot be raised later")
        masters, threads = part.master_pointers(bucket, self.steps), torch.get_num_threads()
        return mix_sgd(incoming, part.table(bucket), settings, momentum, masters, grad_scale, threads)
