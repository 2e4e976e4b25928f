"""Before training starts: do all ranks hold the same model, in the same order, with the same settings?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from decentcomm.control import Control
from decentcomm.errors import DisagreementError, UnsupportedError


def describe(
    params: Sequence[torch.Tensor], names: Sequence[str], settings: dict[str, Any], problem: str = ""
) -> dict[str, Any]:
    """What must be equal on all ranks, as JSON can carry it; `problem` is what is wrong on this rank alone."""
    shapes = [[list(p.shape), str(p.dtype), list(p.stride())] for p in params]
    trained = [p.requires_grad for p in params]
    plain = {key: _repr(value) for key, value in settings.items()}
    return {"names": list(names), "params": shapes, "trained": trained, "settings": plain, "problem": problem}


def _repr(value: Any) -> str:
    """Of an object that prints its address, its type."""
    return type(value).__name__ if " at 0x" in repr(value) else repr(value)


def group_settings(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The settings of all param groups, tensors as numbers."""
    hidden = ("params", "param_names")
    return {
        f"group {g} {key}": value.tolist() if isinstance(value, torch.Tensor) else value
        for g, group in enumerate(groups)
        for key, value in [*group.items(), ("parameters", len(group["params"]))]
        if key not in hidden
    }


def require_agreement(own: dict[str, Any], control: Control) -> None:
    """Compare with all ranks; raise on the first difference, naming the parameter or setting and the ranks.

    Collective.
    """
    everyone = [json.loads(data) for data in control.all_gather(json.dumps(own).encode())]
    for r, other in enumerate(everyone):
        if other["problem"]:
            raise UnsupportedError(f"rank {r}: {other['problem']}")
    first = everyone[0]
    for r, other in enumerate(everyone):
        if len(other["params"]) != len(first["params"]):
            raise DisagreementError(
                f"rank 0 has {len(first['params'])} parameters, rank {r} has {len(other['params'])}: "
                "all ranks must build the same model"
            )
    for i, name in enumerate(first["names"]):
        for what, values in (
            ("name", [other["names"][i] for other in everyone]),
            ("shape, dtype and strides", [other["params"][i] for other in everyone]),
            ("requires_grad", [other["trained"][i] for other in everyone]),
        ):
            _require_equal(f"{name}: {what}", values)
    for key in sorted({key for other in everyone for key in other["settings"]}):
        _require_equal(key, [other["settings"].get(key) for other in everyone])


def require_same_step(steps: int, control: Control) -> None:
    """Raise if not all ranks have taken as many steps. Collective."""
    everyone = [int(s) for s in control.all_gather(str(steps).encode())]
    if len(set(everyone)) > 1:
        raise DisagreementError(f"ranks are at different steps, {everyone}: all must meet at the same one")


def _require_equal(what: str, values: list[Any]) -> None:
    different = [r for r, value in enumerate(values) if value != values[0]]
    if different:
        raise DisagreementError(
            f"{what} differ between ranks: {values[0]} on rank 0, {values[different[0]]} on ranks {different}"
        )
