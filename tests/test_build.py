"""What is built can be installed, imported and linked: the wheel, the C++ target, the Makefile's first checks."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.launching import BIN, clean_environment

ROOT = Path(__file__).parent.parent
CONSUMER = """
#include <cstdio>
#include "common/cpu.h"
int main() { std::puts(decentcomm::version().c_str()); }
"""


def shell(*argv: object, **options: object) -> str:
    env = clean_environment(PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run([str(a) for a in argv], env=env, capture_output=True, text=True, timeout=110, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a source distribution, so that both are known to be whole."""
    source, out = tmp_path_factory.mktemp("source") / "decentcomm", tmp_path_factory.mktemp("wheel")
    generated = shutil.ignore_patterns(
        ".venv", ".git", "build", "dist", "*.so", "*.egg-info", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, source, ignore=generated)
    shell(sys.executable, "setup.py", "-q", "sdist", "-d", out, cwd=source)
    (archive,) = out.glob("decentcomm-*.tar.gz")
    shell(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", out, archive)
    (made,) = out.glob("decentcomm-*.whl")
    return made


def test_the_wheel_works_and_takes_no_foreign_name(wheel: Path, tmp_path: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"decentcomm"}
    shell(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path, wheel)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import decentcomm, decentcomm._C, decentcomm.kernels, decentcomm.cli\n"
        "modules = (decentcomm, decentcomm._C, decentcomm.kernels)\n"
        f"assert all(m.__file__.startswith({str(tmp_path)!r}) for m in modules)\n"
        "assert decentcomm.__version__ == decentcomm._C.version()\n"
        "assert 'torch' not in sys.modules\n"
        "try: import kernels\n"
        "except ImportError: print('good')"
    )
    assert shell(sys.executable, "-c", code, cwd=tmp_path).strip() == "good"


def test_the_engine_links_into_no_torch_and_no_cuda(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        (name,) = [n for n in z.namelist() if n.startswith("decentcomm/_C.") and n.endswith(".so")]
        lines = shell("ldd", z.extract(name, tmp_path)).splitlines()
    needed = [line.split("(0x")[0] for line in lines]  # without addresses, in which c10 may well appear
    assert len(needed) > 3
    assert not any(word in line for line in needed for word in ("torch", "c10", "cuda", "nccl", "libmpi"))


def test_a_cpp_program_links_the_core(tmp_path: Path) -> None:
    shell("cmake", "-S", ROOT, "-B", tmp_path / "core", "-G", "Ninja", "-DDECENTCOMM_PYTHON=OFF")
    shell("cmake", "--build", tmp_path / "core")
    shell("cmake", "--install", tmp_path / "core", "--prefix", tmp_path / "prefix")
    (tmp_path / "main.cpp").write_text(CONSUMER)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(consumer CXX)\nfind_package(decentcomm REQUIRED)\n"
        "add_executable(consumer main.cpp)\ntarget_link_libraries(consumer decentcomm::core)\n"
    )
    shell(
        "cmake",
        "-S",
        tmp_path,
        "-B",
        tmp_path / "b",
        "-G",
        "Ninja",
        f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}",
    )
    shell("cmake", "--build", tmp_path / "b")
    import decentcomm

    assert shell(tmp_path / "b" / "consumer").strip() == decentcomm.__version__


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("PYTHON=no-such-python", "decentcomm needs Python 3.10 or newer: 'no-such-python' was not found"),
        ("CXX=no-such-compiler", "decentcomm needs a C++20 compiler: 'no-such-compiler' was not found"),
    ],
)
def test_a_missing_tool_is_named_in_one_sentence(assignment: str, sentence: str) -> None:
    done = subprocess.run(["make", "-C", str(ROOT), "tools", assignment], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert done.stderr.startswith(sentence)


def test_settings_are_typed_and_a_wrong_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from decentcomm._C import Environment
    from decentcomm.errors import ConfigError

    monkeypatch.setenv("DECENTCOMM_TIMEOUT", "2.5")
    monkeypatch.setenv("DECENTCOMM_LOG", "debug")
    settings = Environment.parse()
    assert (settings.timeout_seconds, settings.log_level) == (2.5, "debug")
    for name, value in (
        ("DECENTCOMM_TIMEOUT", "soon"),
        ("DECENTCOMM_TIMEOUT", "-1"),
        ("DECENTCOMM_LOG", "loud"),
    ):
        with monkeypatch.context() as m:
            m.setenv(name, value)
            with pytest.raises(ConfigError, match=f"{name}='{value}' must be"):
                Environment.parse()
