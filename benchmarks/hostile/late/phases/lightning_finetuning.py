"""Lightning's finetuning callback: the backbone is unfrozen at an epoch and joins the optimizer."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import BaseFinetuning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Unfreeze(BaseFinetuning):
    def __init__(self, unfreeze_at_epoch=10):
        super().__init__()
        self.unfreeze_at_epoch = unfreeze_at_epoch

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module, current_epoch, optimizer):
        if current_epoch == self.unfreeze_at_epoch:
            self.unfreeze_and_add_param_group(modules=pl_module.backbone, optimizer=optimizer, lr=1e-5)


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        convolutions = [m for _ in range(6) for m in (nn.Conv2d(128, 128, 3, 1, 1), nn.ReLU())]
        self.backbone = nn.Sequential(nn.Conv2d(3, 128, 3, 1, 1), nn.ReLU(), *convolutions)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.head(self.backbone(x)), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(filter(lambda p: p.requires_grad, self.parameters()), lr=1e-3)


data = DataLoader(TensorDataset(torch.zeros(144, 3, 224, 224), torch.zeros(144, dtype=torch.long)), batch_size=48)
trainer = pl.Trainer(
    max_epochs=30, accelerator="gpu", devices=1, callbacks=[Unfreeze()], logger=False, enable_checkpointing=False,
    enable_progress_bar=False,
)  # fmt: skip
trainer.fit(Classifier(), data)
