"""The estimates of one job at several batch sizes, and their table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.estimates.result import Estimate

if TYPE_CHECKING:
    import pandas


class Sweep(dict[int, Estimate | CannotEstimate]):
    """By batch size, the estimate, or the error if no number can be given.

    Example:
        >>> found = estimator.sweep(found.job, [8, 16])
        >>> found
        <Sweep of batch sizes 8, 16>
        >>> found.rows()[0]["batch_size"]
        8
    """

    def __repr__(self) -> str:
        sizes = [str(size) for size in self]
        shown = sizes if len(sizes) <= 10 else [*sizes[:4], "...", *sizes[-4:]]
        return f"<Sweep of batch sizes {', '.join(shown)}>"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each batch size, with sizes in bytes.

        Returns:
            Dicts of `batch_size`, `allocated_bytes`, `reserved_bytes`, `process_bytes`, `upper_bound_bytes`, `verdict` and
            `error`; what is unknown is None.

        Example:
            >>> [row["verdict"] for row in estimator.sweep(found.job, [8, 16]).rows()]
            ['fits', 'fits']
        """
        return [_row(size, one) for size, one in self.items()]

    def to_pandas(self) -> pandas.DataFrame:
        """Return `rows` as a data frame, indexed by batch size.

        Raises:
            UsageError: pandas is not installed.

        Example:
            >>> estimator.sweep(found.job, [8, 16]).to_pandas().index.tolist()
            [8, 16]
        """
        try:
            import pandas
        except ImportError:
            raise UsageError("to_pandas needs pandas: pip install pandas, or use rows().") from None
        table = pandas.DataFrame(self.rows(), columns=list(_COLUMNS))
        return table.set_index("batch_size")


_COLUMNS: Final = (
    "batch_size", "allocated_bytes", "reserved_bytes", "process_bytes", "upper_bound_bytes", "verdict", "error",
)  # fmt: skip


def _row(size: int, one: Estimate | CannotEstimate) -> dict[str, Any]:
    known: tuple[Any, ...] = (None,) * 5
    if isinstance(one, Estimate):
        known = (one.allocated, one.reserved, one.process, one.upper_bound, one.verdict.value if one.has_card else None)
    return dict(zip(_COLUMNS, (size, *known, None if isinstance(one, Estimate) else str(one)), strict=True))
