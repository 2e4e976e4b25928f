"""The mailbox under random schedules: no torn or skipped version, no data race, and a broken rule is noticed."""

import re
import shutil
from pathlib import Path

import pytest

from tests.launching import run
from tests.test_build import ROOT, shell

MAILBOX = "csrc/mailbox/mailbox.cpp"
MUTATIONS = {
    "a slot is overwritten before its readers released it": (
        MAILBOX,
        'previous.readers)\n      await(counters(rank, bucket).released, step, rank, bucket, step, "released");',
        "previous.readers) (void)rank;",
    ),
    "a neighbour's version is not waited for": (
        MAILBOX,
        'plan.direct) {\n    await(counters(rank, bucket).published, step + 1, rank, bucket, step, "published");',
        "plan.direct) {",
    ),
    "a member's version is not waited for before it is averaged": (
        MAILBOX,
        'if (rank != rank_) await(counters(rank, bucket).published, step + 1, rank, bucket, step, "published");',
        "(void)rank;",
    ),
    "a chunk that another rank claimed is not waited for": (
        MAILBOX,
        "if (!state.reached(done(step))) await(state, done(step)",
        "if (!state.reached(claimed(step))) await(state, claimed(step)",
    ),
    "an average overwrites what others still read": (
        MAILBOX,
        'if (step > 0) await(counters(rank, bucket).released, step, rank, bucket, step, "released");',
        "",
    ),
    "a slot is overwritten although it is pinned": (
        MAILBOX,
        "if (!wait_unpinned(counters(rank_, bucket).pins[(step + 1) % kSlots], policy_))",
        "if (false)",
    ),
    "a pin is trusted although the owner went on": (
        MAILBOX,
        "pins.pin();\n    if (owner.published.value.load() - 1 == version) {",
        "for (int i = 0; i < 20'000; ++i) std::atomic_thread_fence(std::memory_order_seq_cst);  // a wider gap\n"
        "pins.pin();\n    if (true) {",
    ),
    "both versions lie in one slot": ("csrc/mailbox/geometry.h", "version % kSlots * slot_stride_", "0 * version"),
}


def build(source: Path, into: Path, *options: str) -> Path:
    """Build the stress program."""
    shell(
        "cmake", "-S", source, "-B", into, "-G", "Ninja", "-DDECENTCOMM_PYTHON=OFF", "-DDECENTCOMM_TESTS=ON", *options
    )
    shell("cmake", "--build", into, "--target", "mailbox_stress")
    return into / "mailbox_stress"


@pytest.fixture(scope="module")
def stress() -> Path:
    return build(ROOT, ROOT / "build" / "stress")


def checked(program: Path, mode: str, ranks: int, steps: int, seed: int, *buckets: int) -> int:
    done = run([str(program), mode, str(ranks), str(steps), str(seed), *map(str, buckets)], deadline=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(re.fullmatch(r"checked (\d+)\n", done.stdout).group(1))  # type: ignore[union-attr]


@pytest.mark.parametrize(("ranks", "seed"), [(3, 1), (4, 2), (5, 3), (8, 4)])
def test_no_torn_or_skipped_version_between_processes(stress: Path, ranks: int, seed: int) -> None:
    assert checked(stress, "processes", ranks, 100_000 // (6 * ranks), seed, 64, 2048, 8192) > 30_000


def test_a_hundred_thousand_exchanges_between_five_processes(stress: Path) -> None:
    assert checked(stress, "processes", 5, 8_000, 5, 1024, 4096) >= 100_000


def test_bounded_staleness_between_processes(stress: Path) -> None:
    assert checked(stress, "processes-stale", 5, 8_000, 10, 1024, 4096) >= 100_000


def test_groups_of_several_chunks(stress: Path) -> None:
    assert checked(stress, "processes", 4, 300, 6, 1_000_000 // 64 * 64) > 1_000


def test_threads_pass_thread_sanitizer() -> None:
    program = build(ROOT, ROOT / "build" / "tsan", "-DDECENTCOMM_SANITIZE=thread")
    assert checked(program, "threads", 4, 2_000, 7, 64, 4096) > 10_000
    assert checked(program, "threads", 3, 20, 8, 600_064) > 50
    assert checked(program, "threads-stale", 4, 2_000, 11, 64, 4096) > 10_000


@pytest.mark.parametrize("broken", MUTATIONS)
def test_a_broken_rule_is_noticed(broken: str) -> None:
    name, rule, instead = MUTATIONS[broken]
    # One copy and build folder for all mutations, so that each compiles only what it changes.
    source, generated = ROOT / "build" / "mutated", shutil.ignore_patterns(".*", "build", "*.so", "*.egg-info")
    if source.exists():
        shutil.rmtree(source)
    shutil.copytree(ROOT, source, ignore=generated)
    text = (source / name).read_text()
    assert text.count(rule) == 1, "the rule to break is not where it was"
    for mutated, *_ in MUTATIONS.values():
        (source / mutated).touch()  # compiled anew also where the mutation before this one was
    (source / name).write_text(text.replace(rule, instead))
    program = build(source, ROOT / "build" / "mutated-build")
    mode = "processes-stale" if "pin" in broken else "processes"
    argv = [mode, "4", "4000", "9", "64", "4096", "524288"]
    assert run([str(program), *argv], deadline=90).returncode == 1
