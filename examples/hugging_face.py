"""A Hugging Face Trainer run in which only the optimizer is changed.

    torchrun --nproc-per-node 2 examples/hugging_face.py --optimizer DAdamW        or AdamW, to compare

A tiny GPT-2 from a config, on bytes of Python's standard library: nothing is downloaded. The Trainer wraps the model in
DistributedDataParallel; under a decentralized optimizer that no longer averages gradients. The Trainer saves rank 0
only: a run that it resumes starts all replicas from there; `dc.checkpoint` keeps each one. Prints one JSON object a
rank.
"""

import argparse
import json
import sysconfig
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import decentcomm as dc

LENGTH = 32


class Windows(torch.utils.data.Dataset):
    """Windows of bytes."""

    def __init__(self, count: int) -> None:
        path = Path(sysconfig.get_path("stdlib")) / "argparse.py"
        self.data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
        self.count = count

    def __len__(self) -> int:
        """Windows."""
        return self.count

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        """One window; labels are the same, the model shifts them."""
        start = i * 37 % (len(self.data) - LENGTH)
        window = self.data[start : start + LENGTH]
        return {"input_ids": window, "labels": window}


def main() -> None:
    """Train, evaluate the mean model, resume."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", choices=["DAdamW", "AdamW"], default="DAdamW")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", default="", help="the Trainer's output directory")
    parser.add_argument("--resume", action="store_true", help="from the Trainer's last checkpoint there")
    options = parser.parse_args()

    torch.manual_seed(0)
    size = {"n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, **size))
    args = TrainingArguments(
        output_dir=options.out or tempfile.mkdtemp(),
        max_steps=options.steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        save_steps=options.steps // 2,
        logging_steps=10,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )

    if options.optimizer == "DAdamW":
        optimizer = dc.optim.DAdamW(model.parameters(), lr=3e-3, module=model)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    trainer = Trainer(model=model, args=args, train_dataset=Windows(4000), optimizers=(optimizer, None))
    trainer.train(resume_from_checkpoint=options.resume or None)

    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    said = {"rank": args.process_index, "losses": losses, "steps": trainer.state.global_step}
    if options.optimizer == "DAdamW":
        said["distance"] = optimizer.consensus_distance()
        said["bytes"] = optimizer.stats()["bytes"]
        with optimizer.averaged():
            said["mean_loss"] = trainer.evaluate(Windows(64))["eval_loss"]
    said["sum"] = float(sum(p.detach().double().sum() for p in model.parameters()))
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
