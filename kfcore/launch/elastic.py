"""The launcher of an elastic job: a dead worker does not end it, missing ones are started.

What the members agree on is the roster (docs/membership.md). The launcher founds it, follows it
in a thread, and starts a worker when there are fewer than wanted and a slot is free.
"""

import secrets
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from kfcore import _native
from kfcore.config import Config
from kfcore.errors import DeadlineError, KfError, TransportError, UsageError
from kfcore.exits import EXIT_EXPELLED, EXIT_PREEMPTED
from kfcore.launch.discovery import discovered_hosts
from kfcore.launch.hosts import Host, Place
from kfcore.launch.note import NEXT_KEY, leave_note, remove_note, take_index
from kfcore.launch.slots import SlotBook
from kfcore.launch.spec import LaunchSpec
from kfcore.launch.ssh import is_here
from kfcore.launch.supervisor import RunningWorker, Supervisor
from kfcore.membership import RosterStore, found_job
from kfcore.membership.door import Life, knock
from kfcore.store import open_store

__all__ = ["ElasticSupervisor"]


_POLL_S = 1.0
_KNOCK_S = 2.0
_DISCOVERY_S = 1.0


class ElasticSupervisor(Supervisor):
    """A `Supervisor` of a job whose workers may change.

    Args:
        spec: The job; `LaunchSpec.elastic` is set.
        out: Gets the workers' standard output.
        err: Gets their standard error, and what the launcher has to say.
        command: Program and arguments of every worker.
        job: What all workers are told alike.
    """

    def __init__(
        self, spec: LaunchSpec, out: BinaryIO, err: BinaryIO, command: list[str], job: Config
    ) -> None:
        super().__init__(spec, out, err, command, job)
        self._least, self._most = spec.elastic or (spec.world_size, spec.world_size)
        self._store = open_store(str(job.store_address), job.job_secret)
        self._rosters = RosterStore(self._store)
        self._wanted = spec.world_size
        self._target = 0  # the roster's, as last seen
        self._restarts = 0
        self._roster: _native.Roster | None = None
        self._version = 0
        self._departed: set[str] = set()
        self._last_loss: tuple[float, str] | None = None
        self._forgiven = 0.0  # failures before this moment did not end the job
        self._news: deque[tuple[float, _native.Roster]] = deque()
        self._listed: deque[list[Host]] = deque()
        self._remarks: deque[str] = deque()  # of the threads
        self._ids: dict[int, str] = {}  # of our workers, by index
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._follow, name="kf-roster", daemon=True)]
        if spec.discovery is not None:
            self._threads.append(
                threading.Thread(target=self._discover, name="kf-discovery", daemon=True)
            )
        hosts = spec.hosts or (Host("localhost", self._most),)
        self._book = SlotBook(hosts, spec.cooldown_s)

    def start(self, places: list[Place]) -> None:
        """Found the job and start its first workers."""
        found_job(self._store, founders=len(places), min_size=self._least, max_size=self._most)
        self._store.set(NEXT_KEY, str(len(places)))
        leave_note(self._store, self._job, self._command)
        self._say(
            f"{len(places)} workers, {self._least} to {self._most}; "
            f"join with: kf join {self._job.store_address}"
        )
        for _ in places:
            self._book.take(0.0)
        super().start(places)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End whatever still runs and free all descriptors."""
        self._closing.set()
        super().close()
        self._store.close()
        remove_note(self._job)

    # ---- what happens -------------------------------------------------------------------

    def _config(self, place: Place) -> Config:
        host = socket.gethostname() if place.host in self._here else place.host
        self._ids[place.rank] = f"{host}-{place.rank}-{secrets.token_hex(2)}"
        return replace(super()._config(place), member_id=self._ids[place.rank])

    def _is_going_on(self) -> bool:
        if super()._is_going_on():
            return True
        return self._kill_at is None and not self._signals and self._others_live()

    def _advance(self, now: float) -> None:
        while self._news:
            self._heard(*self._news.popleft())
        while self._remarks:
            self._say(self._remarks.popleft())
        while self._listed:
            self._relisted(self._listed.popleft())
        if self._kill_at is None and self._stop_at is None and not self._signals:
            self._fill_up(now)
        super()._advance(now)

    def _ended(self, rank: RunningWorker, now: float) -> None:
        if self._kill_at is not None or (self._version == 0 and not self._has_begun()):
            super()._ended(rank, now)  # the job has not begun, or is being stopped
            return
        before = self._stop_at
        super()._ended(rank, now)
        self._stop_at = before
        rank.err.release()
        result = rank.worker.collect()
        failed = result.exit_code not in (0, EXIT_PREEMPTED, EXIT_EXPELLED)
        if result.exit_code == 0:
            self._forgiven = now
        if result.exit_code == EXIT_EXPELLED:
            rank.failed_at = None
        slot = (rank.place.host, rank.place.local_rank)
        self._book.give_back(slot, failed=result.exit_code not in (0, EXIT_PREEMPTED), now=now)
        if failed or result.exit_code == EXIT_EXPELLED:
            self._last_loss = (now, result.verdict)
            left = sum(r.worker.result is None for r in self._ranks) + self._others()
            cool = self._book.cooling_s(rank.place.host, now)
            self._say(
                f"{result.verdict}; {left} left, at least {self._least} needed; "
                f"{rank.place.host} gets no new worker for {cool:g} s"
            )

    def _heard(self, at: float, roster: _native.Roster) -> None:
        """Take note of a roster, and say what is new in it."""
        self._roster = roster
        if roster.target and roster.target != self._target:
            self._wanted = min(self._most, max(self._least, roster.target))
        self._target = roster.target
        for gone in roster.gone:
            if gone.id not in self._departed:
                self._departed.add(gone.id)
                if gone.how.name in ("left", "excluded"):
                    self._wanted = max(self._least, self._wanted - 1)
        if roster.version == self._version:
            return
        self._version = roster.version
        names = " ".join(member.id for member in roster.members)
        after = ""
        if self._last_loss is not None:
            lost_at, verdict = self._last_loss
            after = f", {max(0.0, at - lost_at):.3f} s after {verdict}"
            self._last_loss = None
        self._say(f"view {roster.version}: {len(roster.members)} workers ({names}){after}")

    def _fill_up(self, now: float) -> None:
        """Start workers until there are as many as wanted, as far as slots allow."""
        roster = self._roster
        if roster is None or roster.ended or roster.version == 0 or self._forgiven_end():
            return
        running = sum(rank.worker.result is None for rank in self._ranks) + self._others()
        while running < min(self._wanted, self._most):
            if self._restarts >= self._spec.most_restarts:
                return
            slot = self._book.take(now)
            if slot is None:
                return
            self._restarts += 1
            running += 1
            self._start_one(slot)

    def _start_one(self, slot: tuple[str, int]) -> None:
        host, local_rank = slot
        if is_here(host):
            self._here.add(host)
        index = take_index(self._store)
        place = Place(index, host, local_rank, max(local_rank + 1, self._share(host)))
        self._say(f"starts worker {index} on {host}")
        self._start_worker(place)

    def _share(self, host: str) -> int:
        """Workers for which a host's cores have to do."""
        alive = [rank for rank in self._ranks if rank.worker.result is None]
        return min(self._most, 1 + sum(rank.place.host == host for rank in alive))

    def _forgiven_end(self) -> bool:
        """Whether the job is finishing: some worker has come to its end and none comes back."""
        roster = self._roster
        members = {member.id for member in roster.members} if roster is not None else set()
        return any(
            rank.worker.result is not None
            and rank.worker.result.exit_code == 0
            and self._ids.get(rank.place.rank) in members
            for rank in self._ranks
        )

    def _others(self) -> int:
        """Members and joiners that somebody else started."""
        return len(self._foreign())

    def _foreign(self) -> list[_native.Member]:
        roster = self._roster
        if roster is None or roster.ended:
            return []
        own = set(self._ids.values())
        return [m for m in (*roster.members, *roster.joiners) if m.id not in own]

    def _others_live(self) -> bool:
        """Whether workers that somebody else started go on; asked at their doors."""
        doors = [(member.id, member.door) for member in self._foreign()]
        lives = knock(doors, self._job.job_secret, _KNOCK_S).values()
        return any(life is not Life.DEAD for life in lives)

    def _has_begun(self) -> bool:
        """Whether view 1 is there; asked of the store, as the thread may lag behind."""
        with suppress(KfError):
            roster, _ = self._rosters.read()
            return roster is not None and roster.version > 0
        return False

    def _finish(self) -> None:
        failed = [
            rank
            for rank in self._ranks
            if rank.failed_at is not None and rank.failed_at > self._forgiven
        ]
        if self._culprit is None and failed and not self._signals:
            self._culprit = min(failed, key=lambda r: (r.err.is_consequence, r.failed_at))
        self._stop_at = None
        super()._finish()

    def _say(self, text: str) -> None:
        self._show_err(f"kf: {text}\n".encode())

    # ---- hosts that come and go ---------------------------------------------------------

    def _relisted(self, hosts: list[Host]) -> None:
        added, removed = self._book.set_hosts(hosts)
        self._wanted = min(self._most, max(self._least, self._book.slots))
        if added:
            self._say(f"new hosts: {' '.join(added)}")
        for rank in self._ranks:
            if rank.place.host in removed and rank.worker.result is None:
                index = rank.place.rank
                self._say(f"{rank.place.host} is no longer listed: worker {index} leaves")
                self._ask_to_leave(self._ids[index])

    def _ask_to_leave(self, member_id: str) -> None:
        try:
            self._rosters.change(lambda roster: roster.leave(member_id))
        except KfError as error:
            self._say(str(error))

    def _discover(self) -> None:
        """Run the script again and again; its list counts when it differs from the last."""
        last: list[Host] | None = None
        while not self._closing.is_set():
            try:
                hosts = discovered_hosts(Path(str(self._spec.discovery)))
            except UsageError as error:
                self._remarks.append(f"{error}; the list stays as it is")
            else:
                if hosts != last:
                    last = hosts
                    self._listed.append(hosts)
            self._closing.wait(_DISCOVERY_S)

    def _follow(self) -> None:
        key = 0
        while not self._closing.is_set():
            try:
                roster, key = self._rosters.wait(key, _POLL_S)
            except DeadlineError:
                continue
            except (TransportError, UsageError):
                return
            self._news.append((time.monotonic(), roster))
