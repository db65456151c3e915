"""Whether the other processes of a run still work: no process waits for one that has died.

A process that is killed closes its connections, which the others notice when they next communicate.
A machine that loses power or network closes nothing: the others would wait for days.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

from annocoin.errors import InputError, one_line

INTERVAL = 1.0
LIMIT = 60.0
"""Seconds without a sign of life after which a process is given up."""

CONTINUES = "the same command on all machines continues"
REASON = "reason"


class Heartbeat:
    """While the block runs, ends this process with one line when another one has ended.

    Every process counts up a number in the store of rank 0 and reads those of the others. A process
    that leaves the block by an exception leaves its reason there. Threads do this, because the
    process itself may compute for hours, or wait inside a library that cannot be interrupted.

    Args:
        rank: of this process.
        world_size: number of processes.
        connect: opens a connection of its own to the store.
        name: of the block, equal in all processes and different from that of other blocks.
        dead_children: describes processes that this one has started and that have died.
        limit: seconds without a sign of life, see `LIMIT`.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        connect: Callable[[], Any],
        name: str = "0",
        *,
        dead_children: Callable[[], Sequence[str]] = list,
        limit: float = LIMIT,
    ) -> None:
        self.rank, self.connect, self.dead_children = rank, connect, dead_children
        self.limit, self.interval = limit, min(INTERVAL, limit / 4)
        self.name, self.others = name, [other for other in range(world_size) if other != rank]
        self._store: Any = None
        self._seen: dict[int, float] = {}
        self._ended, self._lock = False, threading.Lock()
        self._reason, self._has_reason = "", threading.Event()

    def __enter__(self) -> Heartbeat:
        now = time.monotonic()
        self._seen = {other: now for other in self.others} | {0: now}
        self._store = self.connect()
        for work in (self._exchange, self._watch):
            threading.Thread(target=work, daemon=True, name=f"heartbeat-{work.__name__}").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self._end()
            return
        if is_connection_error(error):
            self._has_reason.wait(3 * self.interval)
            self._end()
            raise InputError(self._reason or f"another process has ended; {CONTINUES}") from None
        self._end()
        if isinstance(error, InputError | OSError):
            reason = one_line(error)
        else:
            reason = f"{type(error).__name__}, see its output"
        with suppress(RuntimeError):  # nobody is left to read it
            who = f"process {self.rank} on {platform.node()}"
            self._store.compare_set(self._key(REASON), "", f"{who} has stopped: {reason}")
            if self.rank == 0:  # its store ends with it
                time.sleep(3 * self.interval)

    def _end(self) -> None:
        with self._lock:
            self._ended = True

    def _exchange(self) -> None:
        """Show the others that this process works, and note which of them do."""
        numbers: dict[int, bytes] = {}
        count = 0
        while not self._ended:
            count += 1
            try:
                self._store.set(self._key(self.rank), str(count))
                if self._store.check([self._key(REASON)]):
                    self._reason = self._store.get(self._key(REASON)).decode()
                    self._has_reason.set()
                    self._give_up(self._reason, patience=self.interval)
                    return
                for other in self.others:
                    if self._store.check([self._key(other)]):
                        number = self._store.get(self._key(other))
                        if numbers.get(other) != number:
                            numbers[other], self._seen[other] = number, time.monotonic()
            except RuntimeError:  # the connection is closed
                self._give_up(f"process 0 has ended; {CONTINUES}", patience=self.interval)
                return
            self._seen[0] = time.monotonic()  # its store answers
            time.sleep(self.interval)

    def _watch(self) -> None:
        """End this process when another one shows nothing for long, or a child is dead."""
        while not self._ended:
            for line in self.dead_children():
                self._give_up(f"{line}; {CONTINUES}", patience=self.interval)
            for other, seen in list(self._seen.items()):
                if time.monotonic() - seen > self.limit:
                    silence = f"no sign of life of process {other} for {self.limit:.0f} s"
                    self._give_up(f"{silence}: its machine or the network fails; {CONTINUES}")
            time.sleep(self.interval)

    def _give_up(self, line: str, patience: float = 0.0) -> None:
        """End this process, unless the main thread ends it in that time with a line of its own."""
        time.sleep(patience)
        with self._lock:
            if not self._ended:
                print(f"annocoin: {line}", file=sys.stderr, flush=True)
                os._exit(2)

    def _key(self, item: int | str) -> str:
        return f"annocoin/{self.name}/{item}"


def is_connection_error(error: BaseException) -> bool:
    """Whether an exception is of communication between processes."""
    import torch.distributed as dist

    gloo = "gloo" in str(error) or "onnection closed by peer" in str(error)
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and gloo)


def connect_to_store() -> Any:
    """A connection to the store of rank 0, besides the one that the process group has."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=LIMIT))
