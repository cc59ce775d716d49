"""Programs whose need changes late, for `benchmarks.hostile.late_programs`: kinds, the lines that matter, ways to the truth.

The programs are in late/. Those of a review are outside the repository; they are known by the first word of their file's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GIB: Final = 2**30
MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Late:
    """One program.

    Attributes:
        name: Path below late/, or the first word of a reviewed program's name.
        kind: The recipe's late change; "harmless" if it has none.
        lines: Texts of which each names a line of the program that an uncertain answer may name; empty for harmless ones.
        early: Replacements of text, each once: with them the program reaches its late state within a few steps and ends.
        kept_bytes: Bytes that the program keeps in the steps which `early` leaves out, with those of the copies it makes.
    """

    name: str
    kind: str
    lines: tuple[str, ...] = ()
    early: tuple[tuple[str, str], ...] = ()
    kept_bytes: int = 0

    @property
    def is_harmless(self) -> bool:
        """Return whether nothing changes late."""
        return not self.lines


LATE: Final[tuple[Late, ...]] = (
    Late(
        "schedules/batch_warmup_table.py",
        "batch-size warm-up, bisect table",
        ("n = batch_size(step)", "return BATCHES[", "torch.randn(n, 1024", "BATCHES = "),
        (("[0, 2_000, 6_000, 12_000]", "[0, 2, 4, 6]"), ("range(20_000)", "range(9)")),
    ),
    Late(
        "schedules/accumulated_losses.py",
        "accumulation raised at a step",
        ("if self.step < self.warm_steps:", "return self.views", "range(self.current_views)"),
        (("warm_steps=5_000", "warm_steps=3"), ("< 60_000", "< 6")),
    ),
    Late(
        "schedules/length_warmup.py",
        "sequence length, linear pace",
        ("length = cfg.min_len", "return int(length)", "length = current_length(", "logits = model("),
        (("pace_steps: int = 15_000", "pace_steps: int = 31"), ("total_steps: int = 40_000", "total_steps: int = 34")),
    ),
    Late(
        "schedules/progressive_resizing.py",
        "progressive resizing by epoch",
        ("if epoch in STAGES:", "images.size = STAGES[epoch]", "STAGES = "),
        (
            ("EPOCHS = 30", "EPOCHS = 5"),
            ("{0: 64, 10: 128, 20: 224, 26: 448}", "{0: 64, 1: 128, 2: 224, 3: 448}"),
            ("return 6_400", "return 600"),
        ),
    ),
    Late(
        "schedules/gradual_unfreezing.py",
        "gradual unfreezing by epoch",
        ("unfreeze(model.groups()", "for group in groups[:count]:", "parameter.requires_grad = True"),
        (
            ("range(24)", "range(7)"),
            ("epoch // 4", "epoch"),
            ("torch.zeros(4096, 128,", "torch.zeros(192, 128,"),
            ("torch.zeros(4096, dtype", "torch.zeros(192, dtype"),
        ),
    ),
    Late(
        "schedules/vqgan_disc_start.py",
        "discriminator starts at a step",
        ("if global_step < threshold:", "factor = adopt_weight(", "if factor > 0:", "default=30_000"),
        (("default=30_000", "default=3"), ("default=200_000", "default=6")),
    ),
    Late(
        "schedules/ema_from_step.py",
        "EMA from a step",
        ("if step < self.start:", "if self.copies is None:", "copy.deepcopy", "ema.update(step)", "start=10_000"),
        (("start=10_000", "start=3"), ("range(100_000)", "range(6)")),
    ),
    Late(
        "schedules/snapshot_ensemble.py",
        "a copy kept each cycle",
        ("if (step + 1) % cycle == 0:", "snapshots.append(", "on_step(step, loss)"),
        (("steps=120_000, cycles=40", "steps=8, cycles=4"),),
        kept_bytes=36 * 16 * (2048 * 2048 + 2048) * 4,
    ),
    Late(
        "schedules/consistency_ramp.py",
        "second loss of a zipped loader from a step",
        ("if step < start:", "weight = ramp_up(step)", "if weight > 0:", "start=4_000"),
        (("start=4_000, length=8_000", "start=3, length=8"), ("range(400)", "range(6)")),
    ),
    Late(
        "schedules/rollout_horizon.py",
        "unrolled length, from a generator",
        ("for horizon in range(2, 17):", "yield horizon", "for _ in range(horizon):", "in enumerate(horizons())"),
        (("range(10_000)", "range(3)"), ("range(1_000)", "range(2)")),
    ),
    Late(
        "phases/test_larger_batch.py",
        "test after training, larger batch",
        ("cfg.test_batch_size))", "test_batch_size: int = 4096", "correct += model("),
        (("epochs: int = 40", "epochs: int = 1"), ("Digits(6_400)", "Digits(256)")),
    ),
    Late(
        "phases/retrieval_matrix.py",
        "retrieval evaluation, n x n matrix",
        ("scores = images @ texts.t()", "top = scores.topk(", "hit = "),
        (
            ("range(32)", "range(1)"),
            ("for image, text in loader:", "for image, text in zip(*(t.split(500) for t in loader.dataset.tensors)):"),
            ("torch.zeros(20_000, 64), torch.zeros(20_000, 64)", "torch.zeros(1_500, 64), torch.zeros(1_500, 64)"),
        ),
    ),
    Late(
        "schedules/progressive_gan.py",
        "progressive growing by images shown",
        ("level = min(shown", "shown += len(z)", "KIMG_PER_LEVEL = ", "for conv in self.convs[:level]", "torch.rand(256, 3"),
        (("(KIMG_PER_LEVEL * 1000)", "512"), ("shown < TOTAL_KIMG * 1000", "shown < 256 * 13")),
    ),
    Late(
        "schedules/unfreeze_callback.py",
        "unfreezing by an own callback",
        (
            'if trainer.state["step"] == self.at_step',
            "trainer.backbone.requires_grad_(True)",
            "trainer.optimizer.add_param_group",
            "at_step=2_500",
        ),
        (("at_step=2_500", "at_step=3"), (".fit(10_000)", ".fit(6)")),
    ),
    Late(
        "schedules/perceptual_from_step.py",
        "perceptual loss from a step",
        ('if current_iter > opt["perceptual_start"]', "F.l1_loss(vgg(output)", "perceptual_start"),
        (('"total_iter": 400_000, "perceptual_start": 100_000', '"total_iter": 6, "perceptual_start": 3'),),
    ),
    Late(
        "schedules/layerdrop_schedule.py",
        "stochastic depth, schedule of its rate",
        ("if self.training and random.random() < self.drop_prob", "net.drop_prob = max("),
        (("total=100_000, full_at=0.6", "total=8, full_at=0.6"),),
    ),
    Late(
        "schedules/amp_until_epoch.py",
        "mixed precision until an epoch",
        ("use_amp = epoch < FULL_PRECISION_FROM", "enabled=use_amp", "FULL_PRECISION_FROM = 50"),
        (("EPOCHS = 60", "EPOCHS = 4"), ("FULL_PRECISION_FROM = 50", "FULL_PRECISION_FROM = 2")),
    ),
    Late(
        "schedules/adam_after_sgd.py",
        "optimizer switch at an epoch",
        ("if epoch < 5:", "if epoch in (0, 5):", "torch.optim.AdamW(", "optimizer = make_optimizer("),
        (("if epoch < 5:", "if epoch < 1:"), ("(0, 5)", "(0, 1)"), ("range(40)", "range(2)"), ("batches=200", "batches=3")),
    ),
    Late(
        "schedules/pinn_lbfgs.py",
        "L-BFGS after Adam",
        ("self.lbfgs.step(self.closure)", "self.lbfgs = torch.optim.LBFGS", "PINN().train("),
        (
            ("adam_steps=20_000", "adam_steps=3"),
            ("        self.lbfgs.step(self.closure)", "        self.closure()"),
        ),
        kept_bytes=104 * 4 * (3 * 4096 + 7 * 4097 * 4096 + 4097),  # 50 pairs, the direction, the gradient before
    ),
    Late(
        "schedules/sorted_sampler.py",
        "batches sorted by length, longest last",
        (
            "for frames, lengths, labels in loader",
            "order = sorted(",
            "yield from self.batches",
            "log_probs = model(",
            "randint(9_000, 10_000)",
        ),
        (("yield from self.batches", "yield from self.batches[-3:]"),),
    ),
    Late(
        "schedules/iterable_curriculum.py",
        "curriculum inside an iterable data set",
        (
            "length = min(32 * 2",
            "self.given += 1",
            "growth_every=4_000",
            "for step, ids in enumerate(loader)",
            "yield torch.randint",
        ),
        (("32 * 2 **", "2048 * 2 **"), (">= 50_000", ">= 4")),
    ),
    Late(
        "schedules/dataset_set_epoch.py",
        "image size by set_epoch",
        ("return self.size if self.epoch < self.last", "dataset.set_epoch(epoch)", "close=10", "self.epoch = epoch"),
        (("epochs = 100", "epochs = 3"), ("close=10", "close=2"), ("return 960", "return 384")),
    ),
    Late(
        "schedules/moco_queue.py",
        "a queue from an epoch, small",
        (
            "if queue_length > 0 and epoch >= epoch_queue_starts",
            "queue = torch.zeros(2",
            "epoch_queue_starts, queue_length = ",
            "if queue is not None",
        ),
        (
            (
                "feat_dim, batch, epochs, iterations = 128, 512, 100, 250",
                "feat_dim, batch, epochs, iterations = 128, 512, 3, 3",
            ),
            ("= 15, 65_536", "= 1, 65_536"),
        ),
    ),
    Late(
        "schedules/teacher_from_epoch.py",
        "teacher from an epoch, fits",
        (
            "if epoch < self.start_epoch",
            "self.teacher = mlp(",
            "distiller.start_epoch_hook(epoch)",
            "start_epoch = 20",
            "if self.teacher is not None:",
        ),
        (("start_epoch = 20", "start_epoch = 1"), ("range(60)", "range(3)")),
    ),
    Late(
        "schedules/accumulation_micro.py",
        "harmless: more micro-batches from a step",
        (),
        (("2_000", "3"), ("8_000", "6"), ("20_000", "8")),
    ),
    Late("schedules/lazy_r1.py", "harmless: gradient penalty every 16 steps", (), (("16, 10.0, 80_000", "4, 10.0, 10"),)),
    Late("schedules/freeze_out.py", "harmless: freezing", (), (("total_steps = 30_000", "total_steps = 30"),)),
    Late(
        "phases/swa_last_quarter.py",
        "SWA from 75 % of the epochs",
        ("if epoch >= SWA_START", "swa_model = AveragedModel(model)", "if swa_model is None", "SWA_START = "),
        (("EPOCHS = 80", "EPOCHS = 4"),),
    ),
    Late(
        "phases/replay_buffer.py",
        "replay memory on the card",
        ("memory.push(state", "self.memory.append", "next_state = torch.rand(1"),
        (("frame >= 2_000_000", "frame >= 40"),),
        kept_bytes=(100_000 - 40) * (4 * 84 * 84 * 4 + 2 * 512),
    ),
    Late(
        "phases/dagger.py",
        "DAgger aggregation",
        ("observations = torch.cat", "for iteration in range", "actions = torch.cat"),
        (("default=500)", "default=2)"),),
    ),
    Late(
        "phases/pretrain_then_finetune.py",
        "fine-tuning after pre-training in one script",
        ("finetune(backbone)", 'logits = model["head"]', "for _ in range(cfg.finetune_steps)"),
        (("pretrain_steps=20_000, finetune_steps=5_000", "pretrain_steps=3, finetune_steps=3"),),
    ),
    Late(
        "phases/self_play_arena.py",
        "arena every 500 steps",
        (
            "if step % self.eval_every == 0 and self.arena()",
            "boards = torch.zeros(self.games",
            "_, value = player(boards)",
            "eval_every=500",
        ),
        (("eval_every=500", "eval_every=3"), ("steps=100_000", "steps=7")),
    ),
    Late(
        "phases/sweep_widths.py",
        "sweep of sizes, largest last",
        ("train_one(width, depth)", "for width, depth in product", "model = build(width, depth)"),
        (("steps=2_000", "steps=3"),),
    ),
    Late(
        "phases/fullres_validation.py",
        "whole images every ten epochs",
        ("if (epoch + 1) % 10 == 0", "net(image.cuda()).softmax", "val_loader = DataLoader(", "return F.interpolate"),
        (("range(160)", "range(1)"), ("% 10 == 0", "% 1 == 0"), ("Scenes(200,", "Scenes(24,"), ("Scenes(20,", "Scenes(2,")),
    ),
    Late(
        "phases/knn_bank.py",
        "kNN monitor with a bank of features",
        (
            "feature_bank.append(",
            "feature_bank = torch.cat",
            "if epoch % 10 == 0",
            "knn_monitor(net, memory_loader",
            "_, index = ",
        ),
        (
            ("range(1, 101)", "range(1, 2)"),
            ("epoch % 10 == 0", "epoch % 1 == 0"),
            ('tqdm(memory_loader, desc="Feature extracting", leave=False)', "(torch.zeros(2_000, 256) for _ in range(400))"),
        ),
    ),
    Late(
        "phases/export_max_batch.py",
        "export with a large batch",
        ("exported = torch.jit.trace", "MAX_SERVING_BATCH = 256", "example = torch.randn"),
        (("range(10_000)", "range(3)"),),
    ),
    Late(
        "phases/checkpoint_average.py",
        "the last ten checkpoints stay on the card",
        ("if epoch >= self.epochs - self.keep", "self.checkpoints.append", "average(self.checkpoints)"),
        (("epochs, keep = 50, 10", "epochs, keep = 11, 10"), ("range(100)", "range(1)")),
    ),
    Late(
        "phases/hf_unfreeze.py",
        "unfreezing by a callback of transformers' Trainer, by epoch",
        ("if round(state.epoch or 0) == self.epoch", "parameter.requires_grad = True", ".train()", "UnfreezeEncoder(epoch=3)"),
        (
            ("UnfreezeEncoder(epoch=3)", "UnfreezeEncoder(epoch=1)"),
            ("num_train_epochs=6", "num_train_epochs=2"),
            ("return 16_000", "return 144"),
        ),
    ),
    Late(
        "phases/lightning_finetuning.py",
        "unfreezing by a callback of Lightning",
        (
            "if current_epoch == self.unfreeze_at_epoch",
            "self.unfreeze_and_add_param_group",
            "unfreeze_at_epoch=10",
            "trainer.fit(",
        ),
        (("unfreeze_at_epoch=10", "unfreeze_at_epoch=1"), ("max_epochs=30", "max_epochs=3")),
    ),
    Late(
        "phases/lightning_swa.py",
        "SWA by a callback of Lightning",
        ("StochasticWeightAveraging(swa_lrs", "trainer.fit("),
        (("max_epochs=40", "max_epochs=4"), ("return 3_200", "return 256")),
    ),
    Late(
        "phases/accelerate_sampling.py",
        "samples every 1,000 steps (Accelerate)",
        (
            "global_step % args.validation_steps == 0",
            "log_validation(model, accelerator",
            "images = images - 0.1",
            "default=1000",
            "images = torch.randn(count",
        ),
        (("default=1000", "default=3"), ("default=100)", "default=2)"), ("torch.zeros(1_600, 3", "torch.zeros(64, 3")),
    ),
    Late("phases/lr_logging.py", "harmless: schedule of the rate, log", (), (("50_000, 2_000, 100", "6, 2, 3"),)),
    Late(
        "phases/best_metric.py",
        "harmless: best metric, checkpoints",
        (),
        (
            ("range(100)", "range(2)"),
            ("torch.zeros(8192, 512)", "torch.zeros(768, 512)"),
            ("torch.zeros(8192, dtype", "torch.zeros(768, dtype"),
        ),
    ),
    Late(
        "phases/early_stopping.py",
        "harmless: early stopping",
        (),
        (("range(1, 501)", "range(1, 3)"), ("batches(60)", "batches(4)")),
    ),
    Late(
        "phases/validate_every_k.py",
        "harmless: validation every 250 steps",
        (),
        (("range(20)", "range(1)"), ("% 250 == 0", "% 2 == 0"), ("make_loader(64_000", "make_loader(640")),
    ),
    Late(
        "phases/sweep_seeds.py",
        "harmless: seeds in one process",
        (),
        (("steps=3_000", "steps=4"), ("print(statistics.mean(losses), statistics.stdev(losses))", "print(len(losses))")),
    ),
    Late("phases/loss_branch.py", "harmless: branches on the loss", (), (("n < 25_000", "n < 6"),)),
    Late(
        "phases/hf_eval.py",
        "harmless: transformers' Trainer with evaluation",
        (),
        (
            ("num_train_epochs=5", "num_train_epochs=1"),
            ("eval_steps=200", "eval_steps=2"),
            ("save_steps=200", "save_steps=2"),
            ("Texts(12_800)", "Texts(160)"),
            ("Texts(1_600)", "Texts(96)"),
        ),
    ),
    Late(
        "phases/lightning_plain.py",
        "harmless: Lightning with validation and test",
        (),
        (("max_epochs=50", "max_epochs=2"), ("20_480", "1_024")),
    ),
    Late("phases/accelerate_plain.py", "harmless: Accelerate", (), (("range(10)", "range(2)"),)),
)

# The programs of the third review of hostile inputs, part A.
REVIEWED: Final[tuple[Late, ...]] = (
    Late(
        "a01",
        "EMA in a helper from a step",
        ("if step == 5000", "state['ema']=", "after(step)"),
        (("step == 5000", "step == 5"), ("range(10000)", "range(8)")),
    ),
    Late(
        "a02",
        "unfreezing by LambdaLR",
        ("if e >= 1000", "s.step()", "p.requires_grad_(True)"),
        (("e >= 1000", "e >= 2"), ("range(3000)", "range(6)")),
    ),
    Late(
        "a03",
        "sequence length by step",
        ("seq=min(", "torch.randn(64,seq"),
        (("step//200", "step"), ("range(4000)", "range(18)")),
    ),
    Late(
        "a11",
        "a hook that keeps each 50th activation",
        ("if s.n%50==0", "mod.kept.append("),
        (("%50", "%5"), ("range(10000)", "range(20)")),
        kept_bytes=196 * 8192 * 2048 * 4,
    ),
    Late(
        "a12",
        "longest samples last",
        ("for x in torch.utils", "lens=[", "loss=m(x.cuda())"),
        (("[32]*6000+[64]*300+[8192]*8", "[8192]*64"),),
    ),
    Late(
        "a13",
        "evaluation with an n x n matrix",
        ("d=torch.cdist",),
        (
            ("range(10)", "range(1)"),
            ("for (x,) in torch.utils.data.DataLoader(va,256)", "for x in va.tensors[0].split(256)"),
            ("torch.randn(2560,W)", "torch.randn(1024,W)"),
        ),
    ),
    Late(
        "a22",
        "generation with a cache that grows",
        ("kv[0]=torch.cat", "for t in range(2048)"),
        (("range(2048)", "range(2048)"),),
    ),
    Late(
        "b01",
        "batch by step",
        ("bs = 64 if", "torch.randn(bs"),
        (("step < 3000", "step < 3"), ("range(100_000)", "range(6)")),
    ),
    Late(
        "b03",
        "unfreezing by epoch",
        ("if epoch == 500", "p.requires_grad_(True)"),
        (("epoch == 500", "epoch == 1"), ("range(1000)", "range(3)"), ("[:2048*20]", "[:2048*3]")),
    ),
    Late(
        "b05",
        "a rare long sample",
        ("L = 128 if", "torch.randn(8,L"),
        (("random.random() > 0.0005", "step % 4"), ("range(1_000_000)", "range(9)")),
    ),
    Late(
        "b06",
        "a copy kept each 5,000 steps",
        ("if step % 5000", "snaps.append("),
        (("step % 5000 == 4999", "step % 2 == 1"), ("range(1_000_000)", "range(8)")),
        kept_bytes=196 * 4 * (2048 * 2048 + 2048) * 4,
    ),
    Late(
        "b08",
        "unfreezing by a callback of transformers' Trainer",
        ("if state.global_step == 1000", "p.requires_grad_(True)", ".train()"),
        (("global_step == 1000", "global_step == 2"), ("num_train_epochs=3", "max_steps=5")),
    ),
    Late(
        "b11",
        "progressive growing by a scheduler object",
        ("if s.seen >= 600_000", "g.level+=1", "sc.tick(16)", "for i in range(s.level)", "s.seen+=n"),
        (("600_000*g.level", "32*g.level"), ("range(1_000_000)", "range(20)")),
    ),
    Late(
        "b13",
        "harmless: nested tensors",
        (),
        (
            (
                "torch.nested.nested_tensor([torch.randn(l,512) for l in range(512,4096,64)],"
                "layout=torch.jagged,device='cuda')",
                "torch.randn(127_232,512,device='cuda')",
            ),
            (".values()", ""),
        ),
    ),
    Late(
        "c01",
        "test after the last epoch",
        ("evaluate(D(te,400_000))", "for (x,) in loader"),
        (("range(50)", "range(1)"),),
    ),
    Late(
        "c02",
        "distances of all queries to the gallery",
        ("sim=features(q)",),
        (
            ("for e in range(10)", "for e in range(1)"),
            ("for (x,) in D(ds,256)", "for x in ds.tensors[0].split(256)"),
            ("torch.empty(2560,W)", "torch.empty(1024,W)"),
        ),
    ),
    Late(
        "c04",
        "second stage by an own counter",
        ("if s.step == a.stage2_step", "s.maybe_stage2()", "q.requires_grad_(True)", "default=3000"),
        (("default=3000", "default=3"), ("range(10_000)", "range(6)")),
    ),
)
