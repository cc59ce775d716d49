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
    Late("phases/lr_logging.py", "harmless", (), (("50_000, 2_000, 100", "6, 2, 3"),)),
    Late(
        "phases/best_metric.py",
        "harmless",
        (),
        (
            ("range(100)", "range(2)"),
            ("torch.zeros(8192, 512)", "torch.zeros(768, 512)"),
            ("torch.zeros(8192, dtype", "torch.zeros(768, dtype"),
        ),
    ),
    Late("phases/early_stopping.py", "harmless", (), (("range(1, 501)", "range(1, 3)"), ("batches(60)", "batches(4)"))),
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
