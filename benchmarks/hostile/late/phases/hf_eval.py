"""Transformers' Trainer with evaluations, metrics, best model and early stopping: the usual settings, nothing grows."""

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
)


class Texts(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        ids = torch.full((128,), 5, dtype=torch.long)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(index % 2)}


def compute_metrics(prediction):
    return {"accuracy": float(np.mean(np.argmax(prediction.predictions, axis=-1) == prediction.label_ids))}


model = DistilBertForSequenceClassification(DistilBertConfig(n_layers=4))
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=32,
    per_device_eval_batch_size=32,
    num_train_epochs=5,
    learning_rate=5e-5,
    lr_scheduler_type="cosine",
    warmup_steps=100,
    eval_strategy="steps",
    eval_steps=200,
    save_steps=200,
    save_total_limit=1,
    load_best_model_at_end=True,
    metric_for_best_model="accuracy",
    logging_steps=50,
    report_to=[],
)
trainer = Trainer(
    model,
    arguments,
    train_dataset=Texts(12_800),
    eval_dataset=Texts(1_600),
    compute_metrics=compute_metrics,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=5)],
)
trainer.train()
