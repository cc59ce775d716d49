"""Lightning's own callback for stochastic weight averaging, from 75 % of the epochs."""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __len__(self):
        return 3_200

    def __getitem__(self, index):
        return torch.zeros(1024), torch.zeros(1024)


class Denoiser(pl.LightningModule):
    def __init__(self, width=8192, depth=9, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        middle = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU())]
        self.net = nn.Sequential(nn.Linear(1024, width), nn.GELU(), *middle, nn.Linear(width, 1024))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        noisy, clean = batch
        return nn.functional.l1_loss(self(noisy), clean)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)}


if __name__ == "__main__":
    pl.seed_everything(7)
    trainer = pl.Trainer(
        max_epochs=40,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=0.75, device=None)],
    )
    trainer.fit(Denoiser(), DataLoader(Signals(), batch_size=64, shuffle=True))
    print(trainer.current_epoch)
