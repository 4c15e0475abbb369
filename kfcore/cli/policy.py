"""``kf policy``: what policies there are, what one does, and what it would have done."""

import inspect
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kfcore.policy.base import HOOKS, Policy
from kfcore.policy.load import BUILT_IN, find_policy, load_policy
from kfcore.policy.replay import replay
from kfcore.policy.trials import read_trials, to_csv

app = typer.Typer(
    help="List, show and replay policies.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def _summary(policy: type[Policy]) -> str:
    return (inspect.getdoc(policy) or "").split("\n", maxsplit=1)[0]


@app.command("list")
def list_policies(as_json: AsJson = False) -> None:
    """List the built-in policies."""
    rows = {name: _summary(policy) for name, policy in sorted(BUILT_IN.items())}
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for name, summary in rows.items():
        typer.echo(f"{name:22} {summary}")


@app.command()
def show(
    policy: Annotated[str, typer.Argument(help="Name, FILE:CLASS or MODULE:CLASS.")],
    as_json: AsJson = False,
) -> None:
    """Show one policy: arguments, monitors, hooks, formula and source."""
    kind = find_policy(policy)
    hooks = [hook for hook in HOOKS if getattr(kind, hook) is not getattr(Policy, hook)]
    facts = {
        "name": kind.__name__,
        "arguments": str(inspect.signature(kind)),
        "monitors": [repr(monitor) for monitor in kind.monitors],
        "hooks": hooks,
        "doc": inspect.getdoc(kind) or "",
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(f"{facts['name']}{facts['arguments']}\n")
    typer.echo(f"{facts['doc']}\n")
    typer.echo(f"hooks: {', '.join(hooks) or 'none'}")
    typer.echo(f"monitors: {', '.join(facts['monitors']) or 'none'}")


@app.command("replay")
def replay_log(
    log: Annotated[Path, typer.Argument(help="events.jsonl of a recorded run.")],
    policy: Annotated[str, typer.Argument(help="NAME(...), FILE:CLASS or MODULE:CLASS.")],
    as_json: AsJson = False,
) -> None:
    """Feed a policy what a recorded run saw and print what it asks for."""
    rows = [
        {
            "step": item.step,
            "hook": item.hook,
            "action": type(item.action).__name__,
            **asdict(item.action),
        }
        for item in replay(load_policy(policy), log)
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(
            ", ".join(f"{key} {value}" for key, value in row.items() if value not in ("", None))
        )
    typer.echo(f"{len(rows)} actions")


@app.command("trials")
def list_trials(
    log: Annotated[Path, typer.Argument(help="events.jsonl of a run that tuned.")],
    out: Annotated[Path | None, typer.Option(help="Write CSV here instead.")] = None,
) -> None:
    """Print what a tuning policy tried and chose, as CSV with units in the header."""
    text = to_csv(read_trials(log))
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
