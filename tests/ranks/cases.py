"""What the scripts of ranks share: cases are functions, named on the command line; each rank prints one JSON object."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

import decentcomm as dc


def run_cases(cases: dict[str, Any]) -> None:
    """Run the functions that the command line names, "name" or "name:argument", and print what they return.

    The results of a case that is named several times are told apart by its argument.
    """
    dc.init()
    named = [case.split(":") for case in sys.argv[1:]]
    often = {name for name, *_ in named if sum(name == other[0] for other in named) > 1}
    said = {}
    for name, *arguments in named:
        said[":".join([name, *arguments]) if name in often else name] = cases[name](*arguments)
    print(json.dumps({"rank": dc.world().rank, **said}), flush=True)


def refusal(act: Callable[[], object]) -> str:
    """What `act` is refused with."""
    try:
        act()
    except dc.Error as e:
        return str(e)
    return "not refused"


def flat(params: Iterable[torch.Tensor]) -> torch.Tensor:
    """All parameters in one, in double."""
    return torch.cat([p.detach().reshape(-1).double() for p in params])


def digest(*tensors: torch.Tensor) -> str:
    """Equal for tensors that are equal bit for bit."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative distance."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def noise(*shape: int, seed: int) -> torch.Tensor:
    """The same random numbers on every rank."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp(seed: int = 0, width: int = 40) -> torch.nn.Sequential:
    """A small model."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))


def batch(step: int, rank: int | None = None) -> torch.Tensor:
    """This rank's batch of a step."""
    return noise(16, 6, seed=1000 * step + (dc.world().rank if rank is None else rank))
