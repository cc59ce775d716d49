"""Card memory shared by several processes: SymmetricMemory, async tensor parallel, NVSHMEM, CUDA IPC.

The other processes' memory does not exist, and the continuation of the job is unknown. So there is no estimate. The null
GPU fails the calls with the library's own status; libraries raise that as errors without advice. A caller that continues
without shared memory gets an estimate, with the call in its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from vramcast.core.errors import OtherAllocator
from vramcast.tracer.format.ledger import CallHandling, Entry

# spec: NVIDIA's names of calls that give memory to other processes, take theirs, or join it to that of other cards
_CALLS: Final = (
    *("cudaIpc", "cuIpc", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMulticast"),
    *("ncclCommWindowRegister", "nvshmem"),
)
_WHAT_TO_DO: Final = (
    "SymmetricMemory, NVSHMEM and CUDA IPC need memory of other processes, which do not exist here: run the job without them "
    "(torchtitan: without --parallelism.enable_async_tensor_parallel)."
)


def explained(error: BaseException, ledger: Iterable[Entry], place: str) -> BaseException:
    """Return the reason for a job's failure: `error`, or advice if the cause is shared card memory.

    Args:
        error: The exception that ended the job.
        ledger: The ledger of its card.
        place: Where in the user's code it was raised.
    """
    is_of_a_call = isinstance(error, RuntimeError)  # spec: PyTorch raises RuntimeError for a failed call
    if isinstance(error, OtherAllocator) or not is_of_a_call:
        return error
    called = [entry.name for entry in ledger if entry.kind is CallHandling.REFUSED and entry.name.startswith(_CALLS)]
    if not called:
        return error
    where = f" ({place})" if place else ""
    return OtherAllocator(f"The job shares card memory between processes, with {called[0]}{where}. {_WHAT_TO_DO}")


def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of PyTorch's function by which a group of ranks announces that it will share memory.

    It raises before anything is compiled for that: async tensor parallel.
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OtherAllocator(f"The job shares card memory between ranks, with {original.__name__}. {_WHAT_TO_DO}")

    return refuse
