"""A Lightning run in which only the optimizer is changed.

    torchrun --nproc-per-node 2 examples/lightning_run.py --optimizer DAdamW       or AdamW, to compare

The ddp strategy wraps the model in DistributedDataParallel; under a decentralized optimizer that no longer averages
gradients. Prints one JSON object a rank.
"""

import argparse
import json
import logging
import os
import tempfile

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import decentcomm as dc


class Regression(lightning.LightningModule):
    """A small network that learns a random one's outputs."""

    def __init__(self, optimizer: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.losses = optimizer, []
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Tanh())
        self.head = torch.nn.Linear(64, 4)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """A loss."""
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.head(self.net(x)), y)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> dict[str, object]:
        """The only place that differs."""
        if self.kind == "DAdamW":
            optimizer = dc.optim.DAdamW(self.parameters(), lr=1e-2, module=self)
        else:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)}


def main() -> None:
    """Train, look at the mean model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", choices=["DAdamW", "AdamW"], default="DAdamW")
    parser.add_argument("--precision", default="32-true", help="bf16-mixed, for instance")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(1024, 8, generator=generator), torch.randn(8, 4, generator=generator)
    loader = DataLoader(TensorDataset(x, (x @ w).sin()), batch_size=32, shuffle=True)
    model = Regression(options.optimizer)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp",
        precision=options.precision,
        max_epochs=5,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        default_root_dir=tempfile.mkdtemp(),
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(model, loader)

    said = {"rank": trainer.global_rank, "losses": model.losses, "steps": trainer.global_step}
    if options.optimizer == "DAdamW":
        optimizer = trainer.optimizers[0]
        said["distance"] = optimizer.consensus_distance()
        with optimizer.averaged(), torch.no_grad():
            said["mean_loss"] = float(torch.nn.functional.mse_loss(model.eval().head(model.net(x)), (x @ w).sin()))
    said["sum"] = float(sum(p.detach().double().sum() for p in model.parameters()))
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
