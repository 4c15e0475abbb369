"""Tensor tables: the published sizes, in an order and with a law that make sense."""

import numpy as np
import pytest

from kfcore.errors import UsageError
from kfsim.workload import load_model, model_names


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("resnet50", 214, 25_583_592),  # lsds/KungFu's fake model
        ("vgg16", 32, 138_357_544),  # Simonyan and Zisserman 2015, configuration D
        (
            "bert_base",
            201,
            109_483_778,
        ),  # 109,482,240 of BERT-base with pooler, and the QA head
        ("mobilenet_v2", 158, 3_504_872),  # Sandler et al. 2018, width 1.0
    ],
)
def test_model_has_the_published_number_of_tensors_and_parameters(name, tensors, parameters):
    model = load_model(name)
    assert len(model.tensors) == len(set(model.tensors)) == tensors
    assert model.parameters == parameters


@pytest.mark.parametrize("name", model_names())
def test_backward_reaches_tensors_in_order_and_ends_at_one(name):
    ends = load_model(name).backward_end
    assert np.all(np.diff(ends) >= 0)
    assert ends[0] >= 0
    assert ends[-1] == pytest.approx(1.0, abs=1e-12)


def test_backward_begins_at_the_output_layer():
    resnet = load_model("resnet50")
    assert resnet.tensors[0] == "fc.bias"
    assert resnet.tensors[-1] == "conv1.weight"
    # VGG's three dense layers hold 89 % of the bytes and 0.8 % of the work: ready at once.
    vgg = load_model("vgg16")
    assert vgg.elements[:6].sum() / vgg.parameters > 0.89
    assert vgg.backward_end[5] < 0.01


def test_unknown_model_is_refused_with_those_that_exist():
    with pytest.raises(UsageError, match="must be one of bert_base, bert_large, mobilenet_v2"):
        load_model("alexnet")
