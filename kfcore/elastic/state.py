"""A worker's state: committed each step, restored after a failed one, handed to joiners."""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kfcore.elastic.image import Image
from kfcore.elastic.parts import Part, as_part
from kfcore.errors import UsageError

__all__ = ["IN_PLACE_BYTES", "ElasticState"]

# Larger arrays are not copied by a commit unless copies are asked for.
IN_PLACE_BYTES = 64 * 1024
_PAGE_BYTES = 4096


@dataclass
class _Commit:
    step: int
    shared: Image
    own: Image
    lent: bool = False  # somebody may still look at its memory


class ElasticState:
    """Everything a worker needs to go on elsewhere, as named parts.

    `commit` says that the state belongs to a finished step; `restore` goes back to it when the
    next step failed.

    Without copies (the default) a commit keeps numbers, generators, positions and arrays up to
    64 KiB (running means, say), and lets larger arrays stand: between two commits only the
    optimizer changes those, and a step fails before it. Put the optimizer's step into
    `changing`; if it breaks off inside, the state is no longer `intact` and has to come from
    another worker or a checkpoint. With copies every array is copied at each commit, and the
    last ``copies`` commits can be restored whatever happened.

    Args:
        copies: Commits kept in full, >= 0.
        **parts: See `add`; shared by all workers.

    Raises:
        UsageError: a part cannot be kept.

    Example:
        >>> import numpy as np
        >>> weights = np.zeros(2)
        >>> state = ElasticState(copies=1, weights=weights, rng=np.random.default_rng(0))
        >>> state.commit(7)
        >>> weights += 1
        >>> state.restore(), weights
        (7, array([0., 0.]))
    """

    def __init__(self, *, copies: int = 0, **parts: Any) -> None:
        if copies < 0:
            raise UsageError(f"copies must be >= 0, got {copies}")
        self._copies = copies
        self._shared: dict[str, Part] = {}
        self._own: dict[str, Part] = {}
        self._commits: deque[_Commit] = deque()
        self._spare: _Commit | None = None
        self._intact = True
        for name, part in parts.items():
            self.add(name, part)

    def add(self, name: str, part: Any, *, shared: bool = True) -> None:
        """Add a part.

        Args:
            name: Its name, the same on every worker and in checkpoints.
            part: As `kfcore.elastic.parts.as_part` takes it: arrays and tensors (restored in
                place), modules, optimizers, samplers, policies, generators, `Value`, and lists
                or dicts of these.
            shared: False: of this worker alone, such as its generator for augmentation; kept
                by commits, but neither compared, nor sent, nor saved.

        Raises:
            UsageError: the name is taken, or the part cannot be kept.
        """
        if name in self._shared or name in self._own:
            raise UsageError(f"part {name!r} is there already")
        (self._shared if shared else self._own)[name] = as_part(part, name)
        self._commits.clear()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the shared parts."""
        return tuple(self._shared)

    @property
    def step(self) -> int | None:
        """Step of the last commit; None before the first."""
        return self._commits[-1].step if self._commits else None

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that can be restored, oldest first."""
        return tuple(commit.step for commit in self._commits) if self.intact else ()

    @property
    def intact(self) -> bool:
        """Whether `restore` can bring back the last commit."""
        return self._intact or self._copies > 0

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Mark the place where large arrays are changed: the optimizer's step.

        Leaving it by an exception leaves the state broken until it is loaded or, where copies
        are kept, restored.
        """
        self._intact = False
        yield
        self._intact = True

    def commit(self, step: int) -> None:
        """Declare the state to be that of a finished step.

        Args:
            step: Its number; not below the last one.

        Raises:
            UsageError: the step goes back, or the state is broken.
        """
        if self._commits and step < self._commits[-1].step:
            raise UsageError(f"step {self._commits[-1].step} is committed, got {step}")
        if not self._intact:
            raise UsageError(
                "the state broke while it was changing: restore or load it before a commit"
            )
        limit = math.inf if self._copies else IN_PLACE_BYTES
        spare, self._spare = self._spare, None
        self._commits.append(
            _Commit(
                step,
                _image(self._shared, limit, None if spare is None else spare.shared),
                _image(self._own, limit, None if spare is None else spare.own),
            )
        )
        while len(self._commits) > max(1, self._copies):
            old = self._commits.popleft()
            self._spare = None if old.lent else old

    def restore(self, step: int | None = None) -> int:
        """Go back to a commit; later ones are forgotten.

        Args:
            step: Which; None: the last.

        Returns:
            Its step.

        Raises:
            UsageError: there is no such commit, or it is broken.
        """
        if not self.intact:
            raise UsageError(
                f"the state broke while it was changing after step {self.step}: load it from "
                "another worker or a checkpoint, or keep copies"
            )
        wanted = self.step if step is None else step
        if wanted is None or wanted not in self.steps:
            raise UsageError(f"step {wanted} is not kept; there are: {list(self.steps)}")
        while self._commits[-1].step != wanted:
            self._commits.pop()
        _restore(self._shared, self._commits[-1].shared.tree())
        _restore(self._own, self._commits[-1].own.tree())
        self._intact = True
        return wanted

    def image(self) -> Image:
        """The shared parts of the last commit, to be saved or sent.

        Without copies the image looks at the arrays themselves: use it up before they change.

        Returns:
            The image; with copies it stays as it is whatever is committed later.

        Raises:
            UsageError: nothing is committed, or the state is broken.
        """
        if not self._commits or not self.intact:
            raise UsageError(
                "nothing is committed" if self.intact else "the state broke while changing"
            )
        self._commits[-1].lent = True
        return self._commits[-1].shared

    def warm(self) -> None:
        """Touch the memory of large arrays, so that it is there when a state is received.

        The first write to a page costs far more than the copy of one; a late worker makes it
        beside the others' training.
        """
        for data in _image(self._shared, -1, None).leaves:
            if len(data) > IN_PLACE_BYTES and data.flags.writeable:
                data[::_PAGE_BYTES] |= 0

    def room(self, header: bytes) -> Image:
        """Memory for another worker's state: this state's own arrays where they fit.

        The state is broken until the image, filled, was given to `load`.

        Args:
            header: `Image.header` of the other state.

        Returns:
            An image to be filled through its `leaves`.

        Raises:
            UsageError: the bytes are not a header.
        """
        self._intact = False
        return Image.to_fill(header, _image(self._shared, -1, None))

    def load(self, image: Image, step: int, *, copy: bool = True) -> None:
        """Take over another worker's state, and commit it.

        Args:
            image: Of a state with the same parts.
            step: Step that it belongs to.
            copy: False: the image is not used again, so its memory may become that of parts.

        Raises:
            UsageError: the parts differ, or one does not fit; the text says which.
        """
        tree = image.tree(copy=copy)
        found = sorted(tree) if isinstance(tree, dict) else [repr(tree)[:80]]
        if found != sorted(self._shared):
            raise UsageError(f"this state has parts {sorted(self._shared)}, got {found}")
        self._intact = False
        _restore(self._shared, tree)
        self._intact = True
        self._commits.clear()
        self.commit(step)

    def digest(self) -> str:
        """128-bit digest of the shared parts as they are now: equal on workers in step."""
        return _image(self._shared, -1, None).digest()


def _image(parts: dict[str, Part], limit: float, reuse: Image | None) -> Image:
    tree = {name: part.capture() for name, part in parts.items()}
    return Image.of(tree, copy_up_to=limit, reuse=reuse)


def _restore(parts: dict[str, Part], tree: dict[str, Any]) -> None:
    for name, part in parts.items():
        try:
            part.restore(tree[name])
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"part {name!r} does not take this state: {error}") from error
