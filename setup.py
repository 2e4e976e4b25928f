"""Builds decentcomm._C by calling CMake with ninja.

Metadata is in pyproject.toml, the source list in CMakeLists.txt.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()


def tool(name: str) -> str:
    """The path of a build tool: beside this Python first, then on PATH."""
    found = shutil.which(name, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))
    if found is None:
        sys.exit(f"decentcomm needs {name} to build: pip install {name}")
    return found


class CMakeBuild(build_ext):
    """Configures once and keeps the build folder, so that the next build compiles only what changed."""

    def build_extension(self, ext: Extension) -> None:
        """Build target _C and put it where setuptools wants it."""
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        cmake = tool("cmake")
        configure = [
            *(cmake, "-S", str(ROOT), "-B", str(build), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]
        subprocess.run(configure, check=True)
        subprocess.run([cmake, "--build", str(build), "--target", "_C"], check=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build / target.name, target)


setup(ext_modules=[Extension("decentcomm._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
