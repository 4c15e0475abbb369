"""Runs a scenario from start to end."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from kfcore.errors import InternalError, UsageError
from kfcore.policy.base import Policy
from kfcore.policy.load import load_policy
from kfcore.task import Task
from kfsim.job import SimJob
from kfsim.norms import Gradients, LawGradients, NoGradients, TaskGradients
from kfsim.result import Result, Summary
from kfsim.scenario import Scenario, TaskSource
from kfsim.timeline import Timeline

__all__ = ["simulate"]

Row = dict[str, Any]


def simulate(
    scenario: Scenario,
    policies: Sequence[Policy | str] = (),
    task: Task | Callable[[], Task] | None = None,
    *,
    record: bool = False,
    trace: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    on_row: Callable[[Row], None] | None = None,
    on_event: Callable[[Row], None] | None = None,
    compute_s: NDArray[np.float64] | None = None,
) -> Result:
    """Simulates a scenario. The same arguments give the same result, byte for byte.

    Args:
        scenario: What to run.
        policies: Added to the scenario's own: instances (for one repeat only, because they
            keep state) or texts as `kfcore.policy.load.load_policy` takes them.
        task: A real model to train (for one repeat only), or what makes one; replaces the
            scenario's ``[task]``.
        record: Also give the ``observed`` events that ``kf policy replay`` needs.
        trace: Also write the first repeat's steps to this file, for Perfetto.
        progress: Called after each step with steps done and steps in all.
        on_row: Receives each row as it comes; the result then keeps none, so that memory
            depends on the live state only.
        on_event: Receives each event, likewise.
        compute_s: [steps, ranks] compute times to replay, seconds, instead of the scenario's;
            fewer columns than ranks are used in turn.

    Returns:
        Rows, events, summary, figures of each repeat.

    Raises:
        UsageError: a policy or task cannot be loaded, or asks for what cannot be.
        InternalError: the job stopped making progress, or an invariant broke.
    """
    repeats = scenario.run.repeats
    has_state = any(isinstance(item, Policy) for item in policies)
    is_task = task is not None and not callable(task)
    if repeats > 1 and (has_state or is_task):
        raise UsageError(
            f"run.repeats is {repeats}: give policies as FILE.py:CLASS and the task as a "
            "function, because each repeat needs fresh ones"
        )
    rows: list[Row] = []
    events: list[Row] = []
    tiers: dict[str, str] = {}
    explanation: list[Row] = []
    evaluation: dict[str, float] = {}
    figures = Summary(scenario)
    take_row, take_event = on_row or rows.append, on_event or events.append
    done = 0

    def see(row: Row) -> None:
        nonlocal done
        done += 1
        figures.add(row)
        take_row(row)
        if progress is not None:
            progress(done, scenario.run.steps * repeats)

    with ExitStack() as open_files:
        timeline = None if trace is None else open_files.enter_context(Timeline(trace))
        for repeat in range(repeats):
            gradients = _gradients(scenario, task, repeat)
            job = SimJob(
                simpy.Environment(initial_time=0),
                scenario,
                gradients,
                policies=[
                    load_policy(item) if isinstance(item, str) else item
                    for item in (*_own_policies(scenario), *policies)
                ],
                repeat=repeat,
                record=record,
                on_row=see,
                on_event=take_event,
                timeline=timeline if repeat == 0 else None,
                compute_s=compute_s,
            )
            _run(job)
            tiers.update(job.links.tiers)
            explanation.append(
                {
                    "repeat": repeat,
                    "steps": job.recall.steps,
                    "recalled": job.recall.recalled,
                    "collectives": job.links.explain(),
                }
            )
            evaluation = gradients.evaluate()
            figures.end_repeat()
            if figures.is_precise:
                break
    return Result(
        tuple(rows),
        tuple(events),
        figures.finish(tiers, evaluation),
        tuple(figures.replications),
        tuple(explanation),
    )


def _run(job: SimJob) -> None:
    process = job.env.process(job.run())
    job.env.run()
    if process.is_alive:
        raise InternalError(
            f"{job.scenario.path}: no event is left, but the job waits after step "
            f"{job.controller.step} of {job.scenario.run.steps} at {job.env.now} ns"
        )


def _gradients(
    scenario: Scenario, task: Task | Callable[[], Task] | None, repeat: int
) -> Gradients:
    seed = scenario.task.seed if scenario.task is not None else 0
    if task is not None:
        made = task() if callable(task) else task
        return TaskGradients(made, seed)
    if scenario.task is not None:
        return TaskGradients(_make_task(scenario.task, scenario.path), seed)
    if scenario.noise is not None:
        return LawGradients(scenario.noise, scenario.workload, scenario.run.seed, repeat)
    return NoGradients(scenario.workload)


def _own_policies(scenario: Scenario) -> list[str]:
    """The scenario's policies; files are looked for beside the scenario too."""
    return [_find(spec, scenario.path) for spec in scenario.policies]


def _find(spec: str, scenario_path: str) -> str:
    file = spec.partition(":")[0]
    beside = Path(scenario_path).parent / file
    return (
        f"{beside}{spec[len(file) :]}" if not Path(file).exists() and beside.exists() else spec
    )


def _make_task(source: TaskSource, scenario_path: str) -> Task:
    where, _, name = _find(source.factory, scenario_path).rpartition(":")
    path = Path(where)
    if not path.is_file():
        raise UsageError(f"{scenario_path}: task: factory: no file {where!r} (FILE.py:NAME)")
    spec = importlib.util.spec_from_file_location(f"kf_task_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{scenario_path}: task: factory: {where} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    factory = getattr(module, name, None)
    if factory is None:
        raise UsageError(f"{scenario_path}: task: factory: {where} has no {name!r}")
    made: Task = factory(**source.arguments)
    return made
