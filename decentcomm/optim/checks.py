"""Ranges of hyperparameters, and options of torch's optimizers."""

from __future__ import annotations

from math import inf
from typing import Any

from decentcomm.errors import ConfigError


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
