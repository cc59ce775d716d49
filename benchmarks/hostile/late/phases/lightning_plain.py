"""A Lightning module with validation, checkpoints, early stopping and a test at the end, all with one batch size."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitMLP(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 10))

    def shared(self, batch, name):
        x, y = batch
        logits = self.layers(x)
        loss = F.cross_entropy(logits, y)
        self.log(f"{name}_loss", loss, prog_bar=True)
        return loss

    def training_step(self, batch, batch_idx):
        return self.shared(batch, "train")

    def validation_step(self, batch, batch_idx):
        self.shared(batch, "val")

    def test_step(self, batch, batch_idx):
        self.shared(batch, "test")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def loader(samples):
    return DataLoader(TensorDataset(torch.zeros(samples, 784), torch.zeros(samples, dtype=torch.long)), batch_size=512)


trainer = pl.Trainer(
    max_epochs=50, accelerator="gpu", devices=1, logger=False, enable_progress_bar=False,
    callbacks=[EarlyStopping("val_loss", patience=5), ModelCheckpoint("checkpoints", monitor="val_loss")],
)  # fmt: skip
model = LitMLP()
trainer.fit(model, loader(20_480), loader(4_096))
trainer.test(model, loader(4_096))
