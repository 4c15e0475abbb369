"""A torch model as a simulator's workload: gradients in backward order, and their work."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kfcore.errors import UsageError

__all__ = ["one_sample", "tensor_table", "write_table"]

Row = tuple[str, int, int]  # tensor, elements, layer_macs


def tensor_table(model: nn.Module, inputs: Sequence[Any]) -> list[Row]:
    """Lists a model's gradients in the order in which backward finishes them.

    The model runs once; a layer that holds parameters counts multiply-adds for one sample: each
    output element of a convolution or linear layer times the inputs that it sums, else its
    output elements.

    Args:
        model: Any module; parameters used by several layers count where they are used last.
        inputs: Arguments of one forward pass; the first dimension is the batch.

    Returns:
        Name, elements and multiply-adds; the latter on a layer's first tensor, 0 on its others.

    Raises:
        UsageError: the model has no trainable parameter, or cannot run on the inputs.
    """
    order: list[tuple[str, nn.Module, int]] = []

    def watch(name: str, module: nn.Module) -> Any:
        def ran(_module: nn.Module, _inputs: Any, output: Any) -> None:
            order.append((name, module, _macs(module, output)))

        return module.register_forward_hook(ran)

    hooks = [
        watch(name, module)
        for name, module in model.named_modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]
    try:
        with torch.no_grad():
            model(*inputs)
    except Exception as error:
        raise UsageError(f"the model does not run on the given input: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()
    rows: list[Row] = []
    seen: set[int] = set()
    for name, module, macs in reversed(order):
        left = macs
        for tensor, parameter in reversed(list(module.named_parameters(recurse=False))):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                full = f"{name}.{tensor}" if name else tensor
                rows.append((full, parameter.numel(), left))
                left = 0
    if not rows:
        raise UsageError("the model has no trainable parameter that its forward pass uses")
    return rows


def one_sample(shape: Sequence[int], *, words: bool = False) -> torch.Tensor:
    """A batch of one sample of zeros.

    Args:
        shape: Of the sample.
        words: Whole numbers instead of floats.

    Returns:
        [1, *shape] int64 or float32.
    """
    return torch.zeros((1, *shape), dtype=torch.long if words else torch.float32)


def _macs(module: nn.Module, output: Any) -> int:
    if not isinstance(output, torch.Tensor):
        return 1
    each = output.numel() // max(1, output.shape[0]) if output.dim() else 1
    if isinstance(module, nn.modules.conv._ConvNd):
        return each * module.weight[0].numel()
    if isinstance(module, nn.Linear):
        return each * module.in_features
    return max(1, each)


def write_table(path: str | Path, rows: Sequence[Row], note: str) -> None:
    """Writes a table that ``workload.model`` of a scenario may name.

    Args:
        path: CSV file, replaced if there.
        rows: As `tensor_table` gives them.
        note: Where it comes from; its first line.
    """
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {note}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("tensor", "elements", "layer_macs"))
        writer.writerows(rows)
