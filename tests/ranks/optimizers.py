"""Ranks for test_optim.py: the first argument names the case; each prints one JSON object."""

import gc
import io
import json
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import torch

import decentcomm as dc
from tests.ranks.cases import refusal


def model(seed: int = 0) -> torch.nn.Sequential:
    """Linear layers with a BatchNorm, so that there are buffers."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 40), torch.nn.BatchNorm1d(40), torch.nn.ReLU(), torch.nn.Linear(40, 3)
    )


def flat(net: torch.nn.Module) -> torch.Tensor:
    """All parameters."""
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def equals_torch() -> dict[str, float]:
    """Alone: as torch.optim, with groups, a scheduler and a parameter that is unused at first."""
    errors = {}
    cases = {
        "adam": (dc.optim.DAdam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
        "adamw": (dc.optim.DAdamW, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        "sgd": (dc.optim.DSGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        "sgd dampening": (dc.optim.DSGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.2}),
    }
    for name, (ours, theirs, options) in cases.items():
        # No normalisation: the bias before it has gradients of pure rounding error, which Adam blows up.
        nets = [torch.nn.Sequential(*(m for m in model() if not isinstance(m, torch.nn.BatchNorm1d))) for _ in range(2)]
        optimizers = []
        for net, cls in zip(nets, (ours, theirs), strict=True):
            first, last = list(net[0].parameters()), list(net[2].parameters())
            optimizers.append(cls([{"params": first}, {"params": last, "lr": 0.003}], **options))
        schedulers = [torch.optim.lr_scheduler.StepLR(o, 5, 0.5) for o in optimizers]
        for t in range(20):
            x = torch.randn(16, 6, generator=torch.Generator().manual_seed(t))
            for net, optimizer, scheduler in zip(nets, optimizers, schedulers, strict=True):
                optimizer.zero_grad()
                y = net(x) if t > 3 else net[:2](x)  # the last layer gets no gradient at first
                y.square().mean().backward()
                optimizer.step()
                scheduler.step()
        a, b = map(flat, nets)
        errors[name] = float((a - b).norm() / b.norm())
    return errors


def start_equal() -> dict[str, object]:
    """Parameters, buffers and frozen parameters become rank 0's, and layouts of all kinds survive."""
    net = model(seed=dc.world().rank)
    net[1].running_mean.fill_(dc.world().rank)
    net[0].weight.requires_grad_(False)
    conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    used = [p for p in net.parameters() if p.requires_grad]
    stride = conv.weight.stride()
    dc.optim.DAdamW([*used, *conv.parameters()], module=torch.nn.ModuleList([net, conv]))
    assert conv.weight.stride() == stride
    return {
        "parameters": float(flat(net).double().sum()),
        "frozen": float(net[0].weight.double().sum()),
        "mean": float(net[1].running_mean.sum()),
    }


def allreduce() -> dict[str, float]:
    """AllReduce: every rank ends as one process with the whole batch would."""
    world = dc.world()
    net, whole = (torch.nn.Linear(5, 2, dtype=torch.float64) for _ in range(2))
    torch.manual_seed(3)
    with torch.no_grad():
        for p, q in zip(net.parameters(), whole.parameters(), strict=True):
            q.copy_(torch.randn(q.shape, dtype=q.dtype))
            p.copy_(q + world.rank)
    optimizer = dc.optim.AllReduce(torch.optim.AdamW(net.parameters(), lr=0.05), module=net)
    single = torch.optim.AdamW(whole.parameters(), lr=0.05)
    for t in range(10):
        xs = [
            torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * t + r))
            for r in range(world.size)
        ]
        net(xs[world.rank]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.stack([whole(x).square().mean() for x in xs]).mean().backward()
        single.step()
        single.zero_grad()
    with optimizer.averaged():
        distance = float((flat(net) - flat(whole)).norm())
    return {"distance": distance, "steps": optimizer.stats()["steps"], "consensus": optimizer.consensus_distance()}


def disagree(*differences: str) -> dict[str, str]:
    """What each difference is refused with."""
    return {what: differ(what) for what in differences}


def differ(what: str) -> str:
    """Rank 1 has another model or setting."""
    odd = dc.world().rank == 1
    net = torch.nn.Linear(4, 3 if odd and what == "shape" else 2)
    if odd and what == "dtype":
        net.bias = torch.nn.Parameter(net.bias.detach().double())
    if odd and what == "frozen":
        net.bias.requires_grad_(False)
    params = list(net.parameters())
    if odd and what == "order":
        params.reverse()
    if odd and what == "count":
        params.pop()
    lr = 0.2 if odd and what in ("lr", "allreduce") else 0.1
    topology: str | dc.topology.Topology = "complete" if odd and what == "topology" else "ring"
    if what == "weights":
        step = 0.3 if odd else 0.2
        w = [[1 - 2 * step, step, step], [step, 1 - 2 * step, step], [step, step, 1 - 2 * step]]
        topology = dc.topology.make("custom", weights=w)
    groups = [{"params": [p]} for p in params] if odd and what == "groups" else params
    accumulate = 4 if odd and what == "accumulate" else 1
    if what == "allreduce":
        return refusal(lambda: dc.optim.AllReduce(torch.optim.SGD(params, lr=lr), module=net))
    options = {"lr": lr, "topology": topology, "module": net, "accumulate": accumulate}
    return refusal(lambda: dc.optim.DAdamW(groups, **options))


def late() -> dict[str, str]:
    """Rank 1 never takes its second step: the others' wait ends with a message."""
    p = torch.nn.Parameter(torch.zeros(10))
    optimizer = dc.optim.DSGD([p], topology="ring", timeout=1.0)
    p.grad = torch.ones(10)
    optimizer.step()
    error = ""
    if dc.world().rank != 1:
        try:
            for _ in range(5):
                optimizer.step()
        except dc.errors.DeadlineError as e:
            error = str(e)
    return {"error": error}


def killed() -> dict[str, object]:
    """Rank 1 is killed in mid-run; nothing of ours is left in /dev/shm while training runs."""
    p = torch.nn.Parameter(torch.zeros(100_000))
    optimizer = dc.optim.DAdamW([p], topology="ring", timeout=1.0)
    p.grad = torch.ones_like(p)
    for _ in range(10):
        optimizer.step()
    named = [f.name for f in Path("/dev/shm").glob("decentcomm-*")]
    if dc.world().rank == 1:
        print(json.dumps({"rank": 1, "named": named}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            optimizer.step()
    except dc.errors.DeadlineError as e:
        return {"named": named, "error": str(e)}


def interrupted() -> dict[str, float]:
    """Ctrl-C while waiting for a rank that does not come."""
    p = torch.nn.Parameter(torch.zeros(10))
    optimizer = dc.optim.DSGD([p], topology="ring", timeout=60.0)
    p.grad = torch.ones(10)
    if dc.world().rank == 1:
        time.sleep(3)
        return {"seconds": 0.0}
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    start = time.monotonic()
    try:
        for _ in range(5):
            optimizer.step()
    except KeyboardInterrupt:
        return {"seconds": time.monotonic() - start}
    return {"seconds": -1.0}


def unequal_use() -> dict[str, float]:
    """Ranks differ in which parameters get gradients: nobody hangs, mixing goes on."""
    rank = dc.world().rank
    params = [torch.nn.Parameter(torch.full((50,), float(i))) for i in range(4)]
    optimizer = dc.optim.DSGD(params, lr=1.0, topology="complete", bucket_bytes=256)
    for _ in range(3):
        for i, p in enumerate(params):
            p.grad = torch.ones(50) if i == rank else None
        optimizer.step()
    with optimizer.averaged():
        return {f"p{i}": float(p[0]) for i, p in enumerate(params)}


def param(*shape: int) -> torch.nn.Parameter:
    """A parameter with a gradient of ones."""
    p = torch.nn.Parameter(torch.zeros(*shape))
    p.grad = torch.ones_like(p)
    return p


def misuse() -> dict[str, object]:
    """Alone: what must be refused, and with which words."""
    said: dict[str, object] = {}
    net = torch.nn.Linear(3, 2)
    optimizer = dc.optim.DSGD(net.parameters(), lr=0.1, module=net)
    with optimizer.averaged():
        said["nested"] = refusal(lambda: optimizer.averaged().__enter__())
        said["step inside"] = refusal(optimizer.step)
    child = os.fork()
    if child == 0:
        os._exit(0 if "forked child" in refusal(optimizer.step) else 1)
    said["fork"] = os.waitpid(child, 0)[1]
    output = net(torch.ones(1, 3)).sum()
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    adam = dc.optim.DAdamW([param(2), param(3)])
    sgd = dc.optim.DSGD([param(2), param(3)], momentum=0.9)
    said["load"] = refusal(lambda: adam.load_state_dict(sgd.state_dict()))
    said["load less"] = refusal(lambda: adam.load_state_dict(dc.optim.DAdamW([param(2)]).state_dict()))
    optimizer.param_groups[0]["momentum"] = 0.9
    said["momentum"] = refusal(optimizer.step)
    said["after a failure"] = refusal(optimizer.step)

    graph = torch.nn.Linear(3, 3)
    two = dc.optim.DSGD(graph.parameters(), lr=0.1, module=graph)
    y = graph(graph(torch.ones(1, 3))).sum()
    y.backward(retain_graph=True)
    two.step()
    try:
        y.backward()
        said["old graph"] = "not refused"
    except RuntimeError as e:
        said["old graph"] = str(e)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.no_grad():
            graph.weight.clamp_(-1, 1)
        two.step()
        two.step()
    said["in place"] = [str(w.message) for w in caught]
    graph.double()
    said["moved"] = refusal(two.step)

    p = param(4)
    said["shared"] = refusal(lambda: dc.optim.DSGD([p, torch.nn.Parameter(p.data)], lr=0.1))
    sparse = torch.nn.Embedding(5, 2, sparse=True)
    embedding = dc.optim.DSGD(sparse.parameters(), lr=0.1, module=sparse)
    sparse(torch.tensor([1])).sum().backward()
    said["sparse"] = refusal(embedding.step)
    dc.optim.DAdamW([param(3, 0), param(2)], lr=0.1).step()
    large = torch.nn.Linear(400, 400)
    dc.optim.DAdamW(large.parameters())
    saved = io.BytesIO()
    torch.save(large.state_dict(), saved)
    said["saved"] = len(saved.getvalue()) / (4 * 400 * 401)
    del output
    said["kept"] = segments_kept()
    return said


def segments_kept() -> list[int]:
    """Segments that are still mapped when an optimizer and its parameters are gone, without garbage collection."""
    gc.collect()
    gc.disable()

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("/dev/shm/decentcomm")

    before, kept = mapped(), []
    for options in ({}, {"in_backward": True}, {"wire_dtype": torch.bfloat16}, {"max_grad_norm": 1.0}):
        p = param(5)
        optimizer = dc.optim.DAdamW([p], **options)
        optimizer.step()
        optimizer.zero_grad()
        assert mapped() > before
        del p, optimizer
        kept.append(mapped() - before)
    gc.enable()
    return kept


def one_bad() -> dict[str, str]:
    """Rank 1 alone has a parameter that cannot be held: all are told, none waits."""
    p = torch.nn.Parameter(torch.zeros(4, dtype=torch.float16 if dc.world().rank == 1 else torch.float32))
    return {"error": refusal(lambda: dc.optim.DSGD([p], lr=0.1))}


def drifted() -> dict[str, str]:
    """AllReduce whose replicas came to differ."""
    p = param(4)
    optimizer = dc.optim.AllReduce(torch.optim.SGD([p], lr=0.1))
    optimizer.step()
    with torch.no_grad():
        p += dc.world().rank
    return {"error": refusal(optimizer.consensus_distance)}


def ahead() -> dict[str, object]:
    """Rank 1 is slow: when did each end its steps, and what did waiting cost?"""
    slow = dc.world().rank == 1
    p = param(64)
    optimizer = dc.optim.DSGD([p], lr=0.1, topology="ring")
    starts: list[float] = []
    ends: list[float] = []
    ticks = [0]
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    optimizer.step()  # all ranks meet at the first
    start, cpu = time.monotonic(), time.process_time()
    for _ in range(8):
        if slow:
            time.sleep(0.1)
        starts.append(time.monotonic())
        optimizer.step()
        ends.append(time.monotonic())
    stop.set()
    thread.join()
    stats = optimizer.stats()
    return {
        "starts": starts,
        "ends": ends,
        "ticks": ticks[0],
        "seconds": time.monotonic() - start,
        "cpu": time.process_time() - cpu,
        "waited": stats["seconds_waited"],
        "bytes": stats["bytes"],
    }


if __name__ == "__main__":
    dc.init()
    case, *arguments = sys.argv[1:]
    print(json.dumps({"rank": dc.world().rank, **globals()[case](*arguments)}), flush=True)
