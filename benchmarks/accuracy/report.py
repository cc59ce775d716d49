"""Report of all accuracy tables, and of the quantiles behind the upper bound.

    python -m benchmarks.accuracy.report [--fresh] [--limit N]

Stored answers are reused, so this is quick after the four scripts have run; missing cases are run.
"""

from __future__ import annotations

import math

from benchmarks.accuracy import gpumemnet_mlp, real_world, timm_a100, xmem
from benchmarks.accuracy.figures import QUANTILES, residual_quantiles
from benchmarks.accuracy.runner import arguments
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


def main() -> None:
    """Print all tables."""
    options = arguments(__doc__)
    parts = (("xMem", xmem), ("GPUMemNet MLP", gpumemnet_mlp), ("Real scripts", real_world), ("timm", timm_a100))
    found: list[Rows] = []
    for title, part in parts:
        rows = part.run(fresh=options.fresh, limit=options.limit)
        found.append(rows)
        print(f"## {title}\n\n{part.report(rows)}\n")
    xmem_rows, mlp_rows, real_rows, timm_rows = found
    families = pairs_by_family(xmem_rows, mlp_rows, timm_rows, real_rows)
    print(f"## measured / estimated process peak - 1\n\n{quantile_table(families)}\n")
    print(f"## Coverage of the bound\n\n{coverage_table(families)}")


if __name__ == "__main__":
    main()
