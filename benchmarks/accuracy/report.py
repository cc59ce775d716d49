"""Every accuracy table, and the quantiles which the upper bound is made of.

    python -m benchmarks.accuracy.report [--fresh] [--limit N]

Kept answers are used, so that this is quick after the four scripts have run; it runs what is missing.
"""

from __future__ import annotations

from benchmarks.accuracy import gpumemnet_mlp, real_world, timm_a100, xmem
from benchmarks.accuracy.figures import QUANTILES, residual_quantiles, table
from benchmarks.accuracy.runner import arguments
from vramcast.bound import RESIDUALS, Residuals
from vramcast.units import MIB

Rows = list[dict[str, object]]
Pairs = list[tuple[float, float]]


def _number(row: dict[str, object], column: str) -> float:
    return float(str(row[column]))


def pairs_by_family(xmem_rows: Rows, mlp_rows: Rows, timm_rows: Rows, real_rows: Rows) -> dict[str, dict[str, Pairs]]:
    """Return (estimated, measured) reserved bytes: family -> data set -> pairs.

    The family is "convolution" for models which convolve and "matmul" for all others. Where a process was measured, its
    data set's context constant is subtracted. Runs that died, or did not run here, do not count.
    """
    families: dict[str, dict[str, Pairs]] = {"matmul": {}, "convolution": {}}
    for row in xmem_rows:
        if not row["real_oom"] and row["status"] == "ok":
            family, name = ("convolution", "xMem CNN") if row["family"] == "cnn" else ("matmul", "xMem transformer")
            pair = (_number(row, "estimate_bytes"), _number(row, "measured_bytes"))
            families[family].setdefault(name, []).append(pair)
    for file in gpumemnet_mlp.FILES:
        of_file = [row for row in mlp_rows if row["file"] == file and row["status"] == "ok"]
        constant = gpumemnet_mlp.context_mib(of_file) * MIB if of_file else 0
        families["matmul"].setdefault("GPUMemNet MLP", []).extend(
            (_number(row, "reserved_mib") * MIB, _number(row, "measured_mib") * MIB - constant) for row in of_file
        )
    usable = [row for row in timm_rows if row["status"] == "ok"]
    constant = timm_a100.context_of(usable, "reserved_bytes") if usable else 0
    families["convolution"]["timm"] = [
        (_number(row, "reserved_bytes"), _number(row, "measured_bytes") - constant) for row in usable
    ]
    for row in real_rows:
        if row["status"] == "ok":
            context = real_world.CONTEXT_MIB * MIB
            family = "matmul" if str(row["name"]).startswith("BERT") else "convolution"
            pair = (_number(row, "process_bytes") - context, _number(row, "measured_bytes") - context)
            families[family].setdefault("real scripts", []).append(pair)
    return families


def quantile_table(families: dict[str, dict[str, Pairs]]) -> str:
    """Return the quantiles of measured / estimated reserved - 1 as a markdown table."""
    lines = []
    for family, sets in families.items():
        for name, pairs in [*sets.items(), ("all", [pair for of_set in sets.values() for pair in of_set])]:
            n, values = residual_quantiles(pairs)
            if n:
                lines.append([f"{family}, {name}", n, *(f"{value:+.4f}" for value in values)])
    return table(["rows", "n", *(str(q) for q in QUANTILES)], lines)


def coverage_table(families: dict[str, dict[str, Pairs]]) -> str:
    """Return the share of each data set's runs below the bound, as a markdown table.

    Twice: by the shipped rule, which these runs made, and by a rule made of the family's other data sets alone, which says
    more about a cluster nobody has seen.
    """
    levels = (0.9, 0.95, 0.99)
    lines = []
    for family, sets in families.items():
        for name, pairs in sets.items():
            others = [pair for other, of_set in sets.items() if other != name for pair in of_set]
            n, values = residual_quantiles(others)
            elsewhere = Residuals(n, QUANTILES, tuple(float(v) for v in values)) if n else None
            cells = [_coverage(RESIDUALS[family], pairs, level) for level in levels]
            cells += [_coverage(elsewhere, pairs, level) if elsewhere else "-" for level in levels]
            lines.append([f"{family}, {name}", len(pairs), *cells])
    heads = [f"{level:g}" for level in levels] + [f"{level:g}, others' rule" for level in levels]
    return table(["rows", "n", *heads], lines)


def _coverage(rule: Residuals, pairs: Pairs, level: float) -> str:
    bound = 1 + max(rule.at(level), 0.0)
    return f"{sum(measured <= estimated * bound for estimated, measured in pairs) / len(pairs):.1%}"


def main() -> None:
    """Print everything."""
    options = arguments(__doc__)
    parts = (("xMem", xmem), ("GPUMemNet MLP", gpumemnet_mlp), ("Real scripts", real_world), ("timm", timm_a100))
    found: list[Rows] = []
    for title, part in parts:
        rows = part.run(fresh=options.fresh, limit=options.limit)
        found.append(rows)
        print(f"## {title}\n\n{part.report(rows)}\n")
    xmem_rows, mlp_rows, real_rows, timm_rows = found
    families = pairs_by_family(xmem_rows, mlp_rows, timm_rows, real_rows)
    print(f"## measured / estimated reserved - 1\n\n{quantile_table(families)}\n")
    print(f"## Coverage of the bound\n\n{coverage_table(families)}")


if __name__ == "__main__":
    main()
