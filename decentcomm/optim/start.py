"""Before training starts: names, agreement of all ranks, and equal parameters and buffers."""

from __future__ import annotations

from typing import Any

import torch

from decentcomm._world import control, init
from decentcomm.errors import UnsupportedError
from decentcomm.exchange.shm import broadcast
from decentcomm.optim.agreement import describe, require_agreement
from decentcomm.optim.flat import by_dtype, is_dense


def start_equal(
    optimizer: str,
    params: list[torch.Tensor],
    names: list[str],
    module: torch.nn.Module | None,
    settings: dict[str, Any],
) -> list[list[int]]:
    """Compare with all ranks, then make parameters and buffers equal to rank 0's; indices by dtype. Collective."""
    others = other_tensors(params, module)
    dtypes: list[list[int]] = []
    problem = ""
    try:
        dtypes = by_dtype(params, names)
        for name, tensor in others.items():
            if tensor.layout != torch.strided or not is_dense(tensor):
                raise UnsupportedError(
                    f"{name} is not a dense tensor (strides {tensor.stride()}); make it .contiguous()"
                )
    except UnsupportedError as e:
        problem = str(e)  # told to all ranks, so that none waits for this one
    every = [*params, *others.values()]
    own = describe(every, [*names, *others], {"optimizer": optimizer, **settings}, problem)
    require_agreement(own, control())
    broadcast(every, init(), control())
    return dtypes


def other_tensors(params: list[torch.Tensor], module: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """Buffers and parameters of the module that the optimizer was not given: to be made equal at the start."""
    if module is None:
        return {}
    known = set(map(id, params))
    both = [*module.named_parameters(), *module.named_buffers()]
    return {f"{name} (not optimized)": t for name, t in both if id(t) not in known}


def names_of(groups: list[dict[str, Any]], module: torch.nn.Module | None, first: int = 0) -> list[str]:
    """What to call each parameter in errors: the name given with it, the module's, or its number."""
    known = {} if module is None else {id(p): name for name, p in module.named_parameters()}
    names = []
    for g, group in enumerate(groups, first):
        given = group.get("param_names", [None] * len(group["params"]))
        for i, (p, name) in enumerate(zip(group["params"], given, strict=True)):
            names.append(name or known.get(id(p), f"parameter {i} of group {g}"))
    return names
