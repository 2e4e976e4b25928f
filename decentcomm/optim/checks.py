"""Options: ranges of hyperparameters, what fits together, and what torch's optimizers have besides."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from decentcomm.errors import ConfigError
from decentcomm.optim.buffers import require_policy
from decentcomm.optim.gradients import NONFINITE


def require_range(name: str, value: float, low: float, below: float = inf) -> None:
    """Raise unless low <= value < below."""
    if not low <= value < below:
        limit = f"at least {low:g}" if below == inf else f"at least {low:g} and below {below:g}"
        raise ConfigError(f"{name}={value} must be {limit}")


def drop_torch_options(options: dict[str, Any]) -> dict[str, Any]:
    """Without what chooses torch's implementation (foreach, fused), which means nothing here; refuses other rules."""
    for name in ("amsgrad", "maximize", "capturable", "differentiable"):
        if options.get(name):
            raise ConfigError(f"{name}={options[name]} is not supported by decentralized optimizers")
    known = ("amsgrad", "maximize", "capturable", "differentiable", "foreach", "fused")
    return {name: value for name, value in options.items() if name not in known}


def check_options(
    wire_dtype: torch.dtype | None, max_grad_norm: float | None, nonfinite: str, in_backward: bool, buffers: str
) -> None:
    """Raise if an option of `Decentralized` is wrong, or does not go with another."""
    if wire_dtype not in (None, torch.float32, torch.bfloat16):
        raise ConfigError(f"wire_dtype={wire_dtype} must be torch.bfloat16, or None for the dtype of the parameters")
    if nonfinite not in NONFINITE:
        raise ConfigError(f"nonfinite={nonfinite!r} must be one of {NONFINITE}")
    require_policy(buffers)
    if max_grad_norm is not None:
        require_range("max_grad_norm", max_grad_norm, 0.0)
    if in_backward and (max_grad_norm is not None or nonfinite == "skip"):
        raise ConfigError(
            "max_grad_norm and nonfinite='skip' need all gradients before the first update: not with in_backward=True"
        )
