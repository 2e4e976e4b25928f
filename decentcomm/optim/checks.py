"""Ranges of hyperparameters."""

from __future__ import annotations

from math import inf

from decentcomm.errors import ConfigError


def require_range(name: str, value: float, low: float, below: float = inf) -> None:
    """Raise unless low <= value < below."""
    if not low <= value < below:
        limit = f"at least {low:g}" if below == inf else f"at least {low:g} and below {below:g}"
        raise ConfigError(f"{name}={value} must be {limit}")
