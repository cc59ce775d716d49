"""The estimates of one job at several batch sizes, their table, and the search for the largest size that fits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from vramcast.core.errors import CannotEstimate, DoesNotFit, UsageError
from vramcast.estimates.result import Estimate

if TYPE_CHECKING:
    import pandas

MOST: Final = 1 << 20  # arbitrary: limit of the search
Tried: TypeAlias = Literal["fits", "too large", "refused"]


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


def search(first: int = 1, most: int = MOST, parts: int = 0) -> Generator[tuple[int, int], Tried, int]:
    """Yield sizes, each with the size needed next if it fits; return the largest that fits, by doubling and bisection.

    Assumes that a larger batch never needs less memory, which workspaces can violate slightly: the answer fits, and the
    next larger size tried did not. A model may refuse a batch of one and accept two; any other refused size counts as too
    large.

    Args:
        first: The first size.
        most: The largest size.
        parts: The search ends once the answer is known to one part in this many; 0: exactly.

    Returns:
        The size; 0 if none fits.
    """
    least, size = 0, first
    tried = yield size, min(2 * size, most)
    if tried == "refused" and size == 1:
        least, size = 1, 2
        tried = yield 2, 4
    fits = least
    while tried == "fits":
        fits = size
        if size == most:
            return fits
        size = min(2 * size, most)
        tried = yield size, min(2 * size, most)
    while size - fits > max(1, fits // parts if parts else 1):
        middle = (fits + size) // 2
        tried = yield middle, (middle + size) // 2
        fits, size = (middle, size) if tried == "fits" else (fits, middle)
    return fits if fits > least else 0


def largest(
    estimate: Callable[[int, int], Estimate | CannotEstimate], sizes: Generator[tuple[int, int], Tried, int] | None = None
) -> int:
    """Return the largest size that fits, or 0.

    Args:
        estimate: Returns the estimate of a size; its second argument is the size needed next if the first fits.
        sizes: The search; None: for a batch.
    """
    sizes = search() if sizes is None else sizes
    wanted = next(sizes)
    while True:
        tried = _tried(estimate(*wanted))
        try:
            wanted = sizes.send(tried)
        except StopIteration as end:
            return int(end.value)


def _tried(answer: Estimate | CannotEstimate) -> Tried:
    if isinstance(answer, CannotEstimate):
        return "too large" if isinstance(answer, DoesNotFit) else "refused"
    return "fits" if answer.fits() else "too large"
