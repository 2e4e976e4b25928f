"""State of an optimizer in and out: torch's format, so that AdamW's state can be loaded into DAdamW.

Moments and masters are views of flat buffers; loading copies into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from decentcomm.errors import UnsupportedError
from decentcomm.optim.partition import Partition

if TYPE_CHECKING:
    from decentcomm.optim.base import Decentralized

KEY = "decentcomm_steps"
"""In the saved param groups, where torch and everything built on it keep what they do not know."""


def expose(optimizer: Decentralized) -> None:
    """Show the flat state as torch's: one dict for each parameter, views of the buffers."""
    for part in optimizer._partitions:
        for i, p in enumerate(part.layout.params):
            views = {name: views[i] for name, views in part.state_views.items()}
            optimizer.state[p] = {"step": part.steps[i], **views}


def with_steps(state_dict: dict[str, Any], steps: int) -> dict[str, Any]:
    """A torch optimizer's state and the number of steps, which is the place in the topology."""
    return {**state_dict, "param_groups": [{**group, KEY: steps} for group in state_dict["param_groups"]]}


def without_steps(state_dict: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """A torch optimizer's state again, and the number of steps, if they are known."""
    groups = state_dict["param_groups"]
    steps = next((int(group[KEY]) for group in groups if KEY in group), None)
    return {**state_dict, "param_groups": [{k: v for k, v in g.items() if k != KEY} for g in groups]}, steps


def load(
    optimizer: Decentralized, partitions: Sequence[Partition], state_dict: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    """Copy the state into the flat buffers; returns what is left for torch to load, the groups, and the steps."""
    state_dict, steps = without_steps(state_dict)
    saved = state_dict["state"]
    numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
    every = [p for group in optimizer.param_groups for p in group["params"]]
    sizes, own = ([len(g["params"]) for g in groups] for groups in (state_dict["param_groups"], optimizer.param_groups))
    if sizes != own:
        raise UnsupportedError(f"the saved state has groups of {sizes} parameters, this optimizer of {own}")
    number = {id(p): i for p, i in zip(every, numbers, strict=True)}
    for part in partitions:
        for p, name in zip(part.layout.params, part.names(), strict=True):
            _require_fit(name, p, saved.get(number[id(p)], {}), part)
    most = 0.0
    with torch.no_grad():
        for part in partitions:
            for i, p in enumerate(part.layout.params):
                values = saved.get(number[id(p)], {})
                part.steps[i] = step = float(values.get("step", 0.0))
                most = max(most, step)
                for key, views in part.state_views.items():
                    if key in values:
                        views[i].copy_(values[key])
                    elif key == "master":
                        views[i].copy_(p)
                    else:
                        views[i].zero_()
    return {"state": {}, "param_groups": state_dict["param_groups"]}, int(most) if steps is None else steps


def _require_fit(name: str, p: torch.Tensor, values: dict[str, Any], part: Partition) -> None:
    """Raise, before anything is copied, if the state is another rule's or another model's."""
    for key, value in values.items():
        if isinstance(value, torch.Tensor) and value.dim() and key in part.state_views and value.shape != p.shape:
            raise UnsupportedError(f"{name}: the saved {key} has shape {tuple(value.shape)}, not {tuple(p.shape)}")
    missing = [key for key in part.state if key not in values and key not in ("master", "mean_grad")]
    if values and missing:
        raise UnsupportedError(
            f"{name}: the saved state has {sorted(values)}, but this optimizer needs {missing}: who saved it?"
        )
