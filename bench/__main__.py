"""Runs every benchmark of this folder, one after the other, each in a process of its own."""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run them; the exit code is that of the first that failed."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        print(f"\n# {path.name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"bench.{path.stem}"], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
