"""Finding experiments: folders ``eNN_slug`` with a README, a run and a plot."""

import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from kfcore.errors import UsageError

__all__ = ["Experiment", "discover", "find", "select"]

_NAME = re.compile(r"e\d\d_[a-z0-9_]+")


@dataclass(frozen=True)
class Experiment:
    """One experiment's folder.

    Attributes:
        name: the folder's name, ``eNN_slug``.
        folder: where it is.
        question: the README's first line without its heading marks.
        worlds: what the README's line ``Worlds: ...`` says: ``simulated``, ``real``, or both.
    """

    name: str
    folder: Path
    question: str
    worlds: str = ""

    @property
    def number(self) -> str:
        """The short id, ``eNN``."""
        return self.name.split("_", 1)[0]

    def module(self, part: str) -> ModuleType:
        """Load ``run`` or ``plot``.

        Raises:
            UsageError: the file, or the function of its name in it, is missing.
        """
        path = self.folder / f"{part}.py"
        if not path.is_file():
            raise UsageError(f"experiment {self.name} has no {part}.py")
        spec = importlib.util.spec_from_file_location(f"_kf_{self.name}_{part}", path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{path} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # so that dataclasses in it find their module
        spec.loader.exec_module(module)
        if not callable(getattr(module, part, None)):
            raise UsageError(f"{path} must define the function {part}()")
        return module


def discover(start: Path | None = None) -> list[Experiment]:
    """List the experiments of the repository around a folder, or else the installed ones.

    Args:
        start: where to begin looking, upwards; the working folder when None.

    Returns:
        All experiments, by name.

    Raises:
        UsageError: there are none, or one has no README.
    """
    here = (Path.cwd() if start is None else start).resolve()
    installed = Path(__file__).resolve().parents[1]
    for root in [*(parent / "experiments" for parent in (here, *here.parents)), installed]:
        folders = sorted(p for p in root.glob("e*") if p.is_dir() and _NAME.fullmatch(p.name))
        if folders:
            return [_describe(folder) for folder in folders]
    raise UsageError(f"no experiments/eNN_slug folders in {here} or above, nor installed")


def _describe(folder: Path) -> Experiment:
    readme = folder / "README.md"
    try:
        lines = readme.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"experiment {folder.name}: {readme}: {error.strerror}") from error
    question = lines[0].lstrip("# ").strip() if lines else ""
    if not question:
        raise UsageError(f"{readme}:1: the first line must be the experiment's question")
    worlds = [line.partition(":")[2] for line in lines if line.startswith("Worlds:")]
    return Experiment(folder.name, folder, question, worlds[0].strip() if worlds else "")


def find(name: str, start: Path | None = None) -> Experiment:
    """Find one experiment by its name or short id.

    Args:
        name: ``eNN_slug`` or ``eNN``.
        start: as in `discover`.

    Returns:
        The experiment.

    Raises:
        UsageError: no such experiment; the text lists those there are.
    """
    known = discover(start)
    found = [e for e in known if name in (e.name, e.number)]
    if len(found) != 1:
        names = ", ".join(e.name for e in known)
        raise UsageError(f"no experiment {name!r}; there are: {names}")
    return found[0]


def select(names: Sequence[str], start: Path | None = None) -> list[Experiment]:
    """Find several experiments; the name ``all`` stands for every one.

    Args:
        names: as for `find`, or ``all``.
        start: as in `discover`.

    Returns:
        Each experiment once, in the order of the names.

    Raises:
        UsageError: no such experiment.
    """
    chosen: dict[str, Experiment] = {}
    for name in names:
        for experiment in discover(start) if name == "all" else [find(name, start)]:
            chosen.setdefault(experiment.name, experiment)
    return list(chosen.values())
