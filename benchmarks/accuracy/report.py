"""Report of the accuracy on measured runs, and of the quantiles behind the upper bound.

    python -m benchmarks.accuracy.report [--variants] [--fresh] [--limit N]

xMem's runs are in this repository (`benchmarks/measured/`), so their jobs are traced here. Sets below $VRAMCAST_SHARED/data are
traced too; all others are named, with the reason and the place to get them. Stored answers are reused.
"""

from __future__ import annotations

import math
import time
from typing import Final

from benchmarks.accuracy import gpumemnet_mlp, real_world, timm_a100, xmem
from benchmarks.accuracy.figures import QUANTILES, residual_quantiles
from benchmarks.accuracy.logs import tabled
from benchmarks.accuracy.runner import arguments, has_rows
from benchmarks.measured.measured_run import not_included
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.estimates.bounds.public import RESIDUALS, Residuals
from vramcast.hardware.context import context_bytes

_ENOUGH = 50  # arbitrary: with fewer runs, a set's highest quantiles mean little

Rows = list[dict[str, object]]
Pairs = list[tuple[float, float]]


def _number(row: dict[str, object], column: str) -> float:
    return float(str(row[column]))


def pairs_by_family(xmem_rows: Rows, mlp_rows: Rows, timm_rows: Rows, real_rows: Rows) -> dict[str, dict[str, Pairs]]:
    """Return (estimated, measured) process bytes: family, named as in `vramcast.estimates.bounds.public` -> data set -> pairs.

    For measured reserved bytes, the table's context is added to both; for a measured process, the data set's own context is
    added to the estimate. Runs that died or did not run here do not count, nor do rows whose sample contains a plan search.
    """
    families: dict[str, dict[str, Pairs]] = {family: {} for family in RESIDUALS}
    for row in xmem_rows:
        if not row["real_oom"] and row["status"] == "ok":
            is_cnn = row["family"] == "cnn"
            family, name = ("convolution", "xMem CNN") if is_cnn else ("matmul", "xMem transformer")
            context = context_bytes(str(row["gpu"]), xmem.STACK.cuda_major or 0, ("cublas", "cudnn")[: 1 + is_cnn]).bytes
            pair = (_number(row, "estimate_bytes") + context, _number(row, "measured_bytes") + context)
            families[family].setdefault(name, []).append(pair)
    for file in gpumemnet_mlp.FILES:
        of_file = [row for row in mlp_rows if row["file"] == file and row["status"] == "ok"]
        constant = gpumemnet_mlp.context_mib(of_file) * MIB if of_file else 0
        families["matmul"].setdefault("GPUMemNet MLP", []).extend(
            (_number(row, "reserved_mib") * MIB + constant, _number(row, "measured_mib") * MIB) for row in of_file
        )
    usable = [row for row in timm_rows if row["status"] == "ok" and not timm_a100.saw_search(row)]
    constant = timm_a100.context_of(usable, "reserved_bytes") if usable else 0
    families["convolution"]["timm"] = [
        (_number(row, "reserved_bytes") + constant, _number(row, "measured_bytes")) for row in usable
    ]
    for row in real_rows:
        if row["status"] == "ok":
            family = "matmul" if str(row["name"]).startswith("BERT") else "convolution"
            pair = (_number(row, "process_bytes"), _number(row, "measured_bytes"))
            families[family].setdefault("real scripts", []).append(pair)
    return families


def quantile_table(families: dict[str, dict[str, Pairs]]) -> str:
    """Return the quantiles of measured / estimated process peak - 1 as a Markdown table.

    The last line of each family is the content of `vramcast.estimates.bounds.public`: at each level, the worst of the data
    sets with enough runs.
    """
    lines = []
    for family, sets in families.items():
        for name, pairs in sets.items():
            n, values = residual_quantiles(pairs)
            if n:
                lines.append([f"{family}, {name}", n, *(f"{value:+.4f}" for value in values)])
        rule = rule_of(list(sets.values()))
        if rule is not None:
            lines.append([f"**{family}**", rule.n, *(f"{value:+.4f}" for value in rule.values)])
    return table(["rows", "n", *(str(q) for q in QUANTILES)], lines)


def rule_of(sets: list[Pairs]) -> Residuals | None:
    """Return, at each level, the worst quantile of the sets with at least 50 runs; of all sets if none has as many."""
    large = [pairs for pairs in sets if len(pairs) >= _ENOUGH] or sets
    of_each = [values for n, values in map(residual_quantiles, large) if n]
    if not of_each:
        return None
    worst = [0.0, *(max(max(values[k] for values in of_each), 0.0) for k in range(1, len(QUANTILES)))]
    return Residuals(sum(map(len, large)), QUANTILES, tuple(math.ceil(value * 1e4 - 1e-9) / 1e4 for value in worst))


def coverage_table(families: dict[str, dict[str, Pairs]]) -> str:
    """Return the share of each data set's runs below the bound, as a Markdown table.

    The table has two rules: the shipped one, which these runs made, and one made only of the other data sets of its kind,
    which tells more about an unseen cluster.
    """
    levels = (0.9, 0.95, 0.99)
    lines = []
    for family, sets in families.items():
        for name, pairs in sets.items():
            elsewhere = rule_of([of_set for other, of_set in sets.items() if other != name])
            cells = [_coverage(RESIDUALS[family], pairs, level) for level in levels]
            cells += [_coverage(elsewhere, pairs, level) if elsewhere else "-" for level in levels]
            lines.append([f"{family}, {name}", len(pairs), *cells])
    heads = [f"{level:g}" for level in levels] + [f"{level:g}, others' rule" for level in levels]
    return table(["rows", "n", *heads], lines)


def _coverage(rule: Residuals, pairs: Pairs, level: float) -> str:
    limit = 1 + max(rule.at(level), 0.0)
    return f"{sum(measured <= estimated * limit for estimated, measured in pairs) / len(pairs):.1%}"


_PARTS: Final = (
    ("GPUMemNet's MLPs", gpumemnet_mlp, gpumemnet_mlp.FILES),
    ("Training scripts of 2025", real_world, ("real_world_a100.csv",)),
    ("timm's models on an A100", timm_a100, ("timm_a100.csv",)),
)


def missing_sets() -> str:
    """Return a line for each set of measured runs that is neither in this repository nor in the folder of public data."""
    missing = [one for one in not_included() if not (one.files and has_rows(*one.files))]
    return "\n".join(f"- not included: {one.name} ({one.why}; {one.where})" for one in missing)


def main() -> None:
    """Print all tables."""
    options = arguments(__doc__, variants="also without workspaces, and with the installed cuDNN: four times the runs")
    started = time.perf_counter()
    xmem_rows = xmem.run(fresh=options.fresh, limit=options.limit, variants=options.variants)
    n_ran = sum(row["status"] == "ok" for row in xmem_rows)
    print(f"## xMem: {len(xmem_rows)} runs, {n_ran} traced to their end\n\n{xmem.software()}\n\n{xmem.report(xmem_rows)}\n")
    print(f"## Logged and published runs, traced before ({tabled.TABLE.name})\n\n{tabled.group_table(tabled.read_table())}\n")
    found: list[Rows] = []
    for title, part, files in _PARTS:
        if has_rows(*files):
            rows = part.run(fresh=options.fresh, limit=options.limit)
            found.append(rows)
            print(f"## {title}\n\n{part.report(rows)}\n")
    if len(found) == len(_PARTS):
        mlp_rows, real_rows, timm_rows = found
        families = pairs_by_family(xmem_rows, mlp_rows, timm_rows, real_rows)
        print(f"## measured / estimated process peak - 1\n\n{quantile_table(families)}\n")
        print(f"## Coverage of the bound\n\n{coverage_table(families)}\n")
    print(f"## Other sets\n\n{missing_sets()}\n\nThis took {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
