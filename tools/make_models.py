#!/usr/bin/env python3
"""Writes tensor tables of published models into kfsim/data from their published structure.

    python tools/make_models.py

ResNet-101 and -152: He et al., "Deep Residual Learning", CVPR 2016, with torchvision's layout
(no biases in convolutions, stride in the 3 x 3). BERT-large: Devlin et al., NAACL 2019 (24
layers, 1024 wide, 4096 inside, 30522 words, 512 positions), 384 tokens, with a
question-answering head.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "kfsim" / "data"
NOTE = (
    "# layer_macs: multiply-adds of the layer's forward pass for one sample, on the first "
    "tensor of the layer that backward reaches; 0 on the others.\n"
)
Layer = tuple[str, list[tuple[str, int]], int]  # name, tensors in forward order, multiply-adds


def conv(name: str, inside: int, out: int, kernel: int, size: int) -> Layer:
    """A convolution without bias whose output is size x size."""
    weights = inside * out * kernel * kernel
    return name, [("weight", weights)], weights * size * size


def norm(name: str, width: int, size: int) -> Layer:
    """A batch or layer normalisation."""
    return name, [("weight", width), ("bias", width)], 2 * width * size


def resnet(blocks: tuple[int, int, int, int]) -> Iterator[Layer]:
    """Layers of a bottleneck ResNet for 224 x 224 images, in forward order."""
    yield conv("conv1", 3, 64, 7, 112)
    yield norm("bn1", 64, 112 * 112)
    inside, size = 64, 56
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            at = f"layer{stage + 1}.{block}"
            first = block == 0
            before = size
            if first and stage > 0:
                size //= 2
            yield conv(f"{at}.conv1", inside, width, 1, before)
            yield norm(f"{at}.bn1", width, before * before)
            yield conv(f"{at}.conv2", width, width, 3, size)
            yield norm(f"{at}.bn2", width, size * size)
            yield conv(f"{at}.conv3", width, 4 * width, 1, size)
            yield norm(f"{at}.bn3", 4 * width, size * size)
            if first:
                yield conv(f"{at}.downsample.0", inside, 4 * width, 1, size)
                yield norm(f"{at}.downsample.1", 4 * width, size * size)
            inside = 4 * width
    yield "fc", [("weight", 2048 * 1000), ("bias", 1000)], 2048 * 1000


def dense(name: str, inside: int, out: int, tokens: int) -> Layer:
    """A linear layer with bias."""
    return name, [("weight", inside * out), ("bias", out)], inside * out * tokens


def bert(layers: int, width: int, tokens: int) -> Iterator[Layer]:
    """Layers of a BERT encoder with a question-answering head, in forward order."""
    tables = [("word", 30522 * width), ("position", 512 * width), ("type", 2 * width)]
    yield "embeddings", tables, tokens * width
    yield norm("embeddings.norm", width, tokens)
    for number in range(layers):
        at = f"layer{number}"
        for part in ("query", "key", "value"):
            extra = tokens * tokens * width if part == "value" else 0  # the attention itself
            name, tensors, macs = dense(f"{at}.{part}", width, width, tokens)
            yield name, tensors, macs + 2 * extra
        yield dense(f"{at}.output", width, width, tokens)
        yield norm(f"{at}.output.norm", width, tokens)
        yield dense(f"{at}.up", width, 4 * width, tokens)
        yield dense(f"{at}.down", 4 * width, width, tokens)
        yield norm(f"{at}.down.norm", width, tokens)
    yield dense("qa", width, 2, tokens)


def write(name: str, title: str, layers: list[Layer]) -> None:
    """One table, in the order in which backward finishes the tensors."""
    with (DATA / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {title}; written by tools/make_models.py, which names the source.\n")
        file.write(NOTE)
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("tensor", "elements", "layer_macs"))
        for layer, tensors, macs in reversed(layers):
            for place, (tensor, elements) in enumerate(reversed(tensors)):
                rows.writerow((f"{layer}.{tensor}", elements, macs if place == 0 else 0))


if __name__ == "__main__":
    write("resnet101", "ResNet-101", list(resnet((3, 4, 23, 3))))
    write("resnet152", "ResNet-152", list(resnet((3, 8, 36, 3))))
    write("bert_large", "BERT-large, 384 tokens", list(bert(24, 1024, 384)))
