"""Decentralised training: each worker averages with one other at a time (AD-PSGD)."""

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kfcore.errors import KfError
from kfcore.session import Session
from kfcore.torch.memory import Flat
from kfcore.torch.wrapper import Wrapper

__all__ = ["PairAveraging"]

_ASK, _MODEL, _ANSWER = (-(1 << 61) + offset for offset in range(3))  # tags of the messages
_FOREVER_S = 1e9


class PairAveraging(Wrapper):
    """AD-PSGD (Lian et al., ICML 2018): after a step, average with a worker chosen at random.

    Nobody waits for slow workers: a partner's thread answers while it computes. A worker's
    shared model is what partners average with; the model in training is a copy of it, taken at
    the end of each step, so no pass ever sees a half-written one. An average changes both sides
    by the same amount, so the mean of all shared models is what the optimizers' steps made it.

    Close it, or use it as a context manager: all workers must, before the session closes.

    Args:
        optimizer: Made over the model's parameters.
        session: Open session.
        model: Its buffers are copied from rank 0 too.
        seed: Of the choice of partners, with the rank.
        every: Steps between averages, >= 1.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        session: Session,
        model: torch.nn.Module | None = None,
        *,
        seed: int = 0,
        every: int = 1,
    ) -> None:
        super().__init__(optimizer, session, model)
        self.partners = [0] * session.world_size  # how often each rank was asked
        self._every, self._steps = every, 0
        self._choice = random.Random(seed * 65537 + session.rank)  # noqa: S311
        self._flats = Flat.by_type(self._trained)
        self._shared = [flat.pack().clone() for flat in self._flats]
        self._lock = threading.Lock()
        self._errors: list[Exception] = []
        self._threads = [
            threading.Thread(
                target=self._serve, args=(peer,), name=f"kf-pair-{peer}", daemon=True
            )
            for peer in range(session.world_size)
            if peer != session.rank
        ]
        for thread in self._threads:
            thread.start()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take the optimizer's step, put it into the shared model, average with a partner.

        Args:
            closure: See `torch.optim.Optimizer.step`.

        Returns:
            The loss, if there is a closure.

        Raises:
            KfError: The session failed, here or in the thread that answers partners.
        """
        if not self._threads:
            return super().step(closure)
        if self._errors:
            raise self._errors[0]
        before = [flat.pack().clone() for flat in self._flats]
        with torch.enable_grad():
            loss = super().step(closure)
        with self._lock:
            for flat, shared, old in zip(self._flats, self._shared, before, strict=True):
                shared.add_(flat.pack() - old)
        self._steps += 1
        if self._steps % self._every == 0:
            self._average_with(self._partner())
        with self._lock:
            for flat, shared in zip(self._flats, self._shared, strict=True):
                flat.memory.copy_(shared)
        for flat in self._flats:
            flat.unpack()
        return loss

    def close(self) -> None:
        """Wait until no partner can ask any more; every rank must call it."""
        if not self._threads:
            return
        for peer in range(self._session.world_size):
            if peer != self._session.rank:
                self._session.send(np.zeros(1, np.int64), peer, _ASK)
        for thread in self._threads:
            thread.join()
        self._threads = []
        for flat, shared in zip(self._flats, self._shared, strict=True):
            flat.memory.copy_(shared)
            flat.unpack()

    def __enter__(self) -> "PairAveraging":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # after an error the session closes and with it the threads end
            self.close()

    def _partner(self) -> int:
        peer = self._choice.randrange(self._session.world_size - 1)
        peer += peer >= self._session.rank
        self.partners[peer] += 1
        return peer

    def _average_with(self, peer: int) -> None:
        """Send the shared model, get the partner's, go half the way."""
        session = self._session
        with self._lock:
            sent = [shared.clone() for shared in self._shared]
        session.send(np.ones(1, np.int64), peer, _ASK)
        for mine in sent:
            session.send(mine, peer, _MODEL)
        theirs = [torch.empty_like(mine) for mine in sent]
        for answer in theirs:
            session.recv(answer, peer, _ANSWER)
        with self._lock:
            for shared, mine, other in zip(self._shared, sent, theirs, strict=True):
                shared.add_(other - mine, alpha=0.5)

    def _serve(self, peer: int) -> None:
        """Answer one partner until it says that it will not ask again."""
        try:
            self._answer_all(peer)
        except KfError as error:
            self._errors.append(error)

    @torch.no_grad()
    def _answer_all(self, peer: int) -> None:
        session = self._session
        question = np.zeros(1, np.int64)
        theirs = [torch.empty_like(shared) for shared in self._shared]
        while True:
            session.recv(question, peer, _ASK, timeout_s=_FOREVER_S)
            if not question[0]:
                return
            for model in theirs:
                session.recv(model, peer, _MODEL)
            with self._lock:
                before = [shared.clone() for shared in self._shared]
                for shared, other, mine in zip(self._shared, theirs, before, strict=True):
                    shared.add_(other - mine, alpha=0.5)
            for model in before:
                session.send(model, peer, _ANSWER)
