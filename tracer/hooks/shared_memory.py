"""Memory of a card which several processes read: SymmetricMemory, async tensor parallel, NVSHMEM, CUDA IPC.

The other processes' memory is not there, and how the job would go on is not known. So no number is given. The null GPU refuses
the calls with the library's own status; libraries raise that in their own words, from which nobody reads what to do. Who calls
and goes on without keeps his answer, with the call in its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from vramcast.core.errors import OtherAllocator
from vramcast.tracer.format.ledger import Entered, Entry

# spec: NVIDIA's names of what gives memory to other processes, takes theirs, or joins it to that of other cards
_CALLS: Final = (
    *("cudaIpc", "cuIpc", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMulticast"),
    *("ncclCommWindowRegister", "nvshmem"),
)
_WHAT_TO_DO: Final = (
    "SymmetricMemory, NVSHMEM and CUDA IPC need memory of processes which are not there: run the job without them "
    "(torchtitan: without --parallelism.enable_async_tensor_parallel)."
)


def explained(error: BaseException, ledger: Iterable[Entry], place: str) -> BaseException:
    """Return why a job failed: `error`, or what it would not have raised if cards were shared here.

    Args:
        error: Ended the job.
        ledger: Of its card.
        place: Where in the user's code it was raised.
    """
    is_of_a_call = isinstance(error, RuntimeError)  # spec: PyTorch's errors of a call are
    if isinstance(error, OtherAllocator) or not is_of_a_call:
        return error
    called = [entry.name for entry in ledger if entry.kind is Entered.REFUSED and entry.name.startswith(_CALLS)]
    if not called:
        return error
    where = f" ({place})" if place else ""
    return OtherAllocator(f"The job shares memory of the card between processes, by {called[0]}{where}. {_WHAT_TO_DO}")


def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of PyTorch's function by which a group of ranks says that it will share memory.

    It comes before anything is compiled for that: async tensor parallel.
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OtherAllocator(f"The job shares memory of the card between ranks, by {original.__name__}. {_WHAT_TO_DO}")

    return refuse
