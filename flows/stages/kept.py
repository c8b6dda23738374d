"""Tasks whose results are kept, or else are errors.

Enters: a task, and the block of the results. Leaves: what it gives, once that is in the storage. It
exists because Prefect lets a task whose result cannot be serialised or written complete with a
warning: the next run would then not know of it, and do the work again.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from prefect.client.schemas.objects import State
from prefect.filesystems import WritableFileSystem
from prefect.results import ResultStore
from prefect.tasks import Task

from tasks.errors import ResultNotKept

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class KeptTask(Generic[P, R]):
    """A task to be called as it is, whose result is looked for afterwards."""

    task: Task[P, Coroutine[Any, Any, R]]

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the task.

        Raises:
            ResultNotKept: It completed, and its result is not in the storage.
        """
        run: Any = self.task
        state: State[R] = await run(*args, return_state=True, **kwargs)
        result: R = await state.aresult()
        if not await self._is_kept(state):
            raise ResultNotKept(
                "the task is done, and its result could not be kept: a rerun would not know of it.",
                where=f"task {self.task.name}, results in {self.task.result_storage}",
                remedy="Look at the line above this one in the run's log: the storage refuses, or "
                "the result is no JSON. Then run again: what is in the store is not made again.",
            )
        return result

    def with_options(self, **options: Any) -> KeptTask[P, R]:
        """Give the same task with other options."""
        return KeptTask(self.task.with_options(**options))

    async def _is_kept(self, state: State[R]) -> bool:
        record: Any = state.data  # a ResultRecord, where there is anything to keep
        key = getattr(getattr(record, "metadata", None), "storage_key", None)
        if key is None:
            return False
        store = await ResultStore().aupdate_for_task(self.task)
        return bool(await store.aexists(key))


def keep(
    task: Task[P, Coroutine[Any, Any, R]], storage: WritableFileSystem, **options: Any
) -> KeptTask[P, R]:
    """Bind a task to the saved block where its results must be kept, as JSON."""
    bound = task.with_options(
        result_storage=storage, result_serializer="json", persist_result=True, **options
    )
    return KeptTask(bound)
