"""Transformers' Trainer with a callback that unfreezes the encoder after the first epochs."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Reviews(Dataset):
    def __len__(self):
        return 16_000

    def __getitem__(self, index):
        ids = torch.full((512,), 100, dtype=torch.long)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(index % 2)}


class UnfreezeEncoder(TrainerCallback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        if round(state.epoch or 0) == self.epoch:
            for parameter in model.bert.parameters():
                parameter.requires_grad = True


class AllParameters(Trainer):
    def create_optimizer(self, *args, **kwargs):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.args.learning_rate)
        return self.optimizer


model = BertForSequenceClassification(BertConfig(num_hidden_layers=12))
model.bert.requires_grad_(False)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=48,
    num_train_epochs=6,
    learning_rate=2e-5,
    report_to=[],
    save_strategy="no",
    logging_steps=100,
)
AllParameters(model, arguments, train_dataset=Reviews(), callbacks=[UnfreezeEncoder(epoch=3)]).train()
