"""Starts real processes under torchrun and mpirun; each prints one JSON object, the test gets them in rank order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
LAUNCHERS = ("torchrun", "mpirun")
# What a launcher would set: a test must not inherit it from whoever runs pytest.
PLACED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without any launcher's variables, one thread a rank, plus `more`."""
    prefixes = ("OMPI_", "PMI_", "PMIX_", "MPI_", "SLURM_", "TORCHELASTIC_")
    env = {k: v for k, v in os.environ.items() if k not in PLACED and not k.startswith(prefixes)}
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**env, **allowed, "OMP_NUM_THREADS": "1", **more}


def command(launcher: str, size: int) -> list[str]:
    """How `launcher` starts `size` ranks of a Python script, up to the script's name."""
    if launcher == "torchrun":
        return [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={size}"]
    # -m mpi4py: an exception in one rank ends all, instead of waiting for the others in MPI_Finalize.
    return [
        str(BIN / "mpirun"),
        "-np",
        str(size),
        "--map-by",
        ":OVERSUBSCRIBE",
        "--bind-to",
        "none",
        sys.executable,
        "-m",
        "mpi4py",
    ]


def run(
    argv: list[str], *, env: dict[str, str] | None = None, deadline: float = 100
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process group of its own, and end all of it at the deadline."""
    with subprocess.Popen(
        argv,
        env=env or clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"{argv} did not end in {deadline} s\n{out}\n{err}") from None
        return subprocess.CompletedProcess(argv, process.returncode, out, err)


def results(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The JSON objects that the ranks printed, in rank order.

    Fails with everything that was printed if a rank failed.
    """
    assert done.returncode == 0, f"{done.args} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    decoder, text, found = json.JSONDecoder(), done.stdout, []
    while (start := text.find('{"')) >= 0:  # lines of several ranks may run together
        value, end = decoder.raw_decode(text, start)
        found.append(value)
        text = text[end:]
    return sorted(found, key=lambda r: r["rank"])


def launch(
    launcher: str, size: int, script: Path, *args: str, deadline: float = 100, **env: str
) -> list[dict[str, Any]]:
    """Run `script` on `size` ranks and return what each printed."""
    argv = [*command(launcher, size), str(script), *args]
    return results(run(argv, env=clean_environment(**env), deadline=deadline))
