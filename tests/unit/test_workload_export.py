"""A torch model's gradients as a workload: order, sizes, work; and a run with it."""

import subprocess
import sys

import pytest

from kfcore.errors import UsageError
from kfsim.scenario import parse
from kfsim.simulation import simulate
from kfsim.workload import load_model

torch = pytest.importorskip("torch")
from kfcore.torch.workload import tensor_table  # noqa: E402


def small():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.BatchNorm2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 16, 10),
    )


def test_tensors_come_in_backward_order_with_their_work():
    rows = tensor_table(small().eval(), [torch.zeros(1, 3, 4, 4)])
    assert rows == [
        ("4.bias", 10, 1280),
        ("4.weight", 1280, 0),
        ("2.bias", 8, 128),
        ("2.weight", 8, 0),
        ("0.bias", 8, 16 * 8 * 27),
        ("0.weight", 216, 0),
    ]


def test_frozen_and_shared_parameters_count_once_or_not_at_all():
    layer = torch.nn.Linear(4, 4, bias=False)
    twice = torch.nn.Sequential(layer, layer)
    assert tensor_table(twice, [torch.zeros(1, 4)]) == [("0.weight", 16, 16)]
    layer.weight.requires_grad_(False)
    with pytest.raises(UsageError, match="no trainable parameter"):
        tensor_table(twice, [torch.zeros(1, 4)])


def test_a_model_that_does_not_run_says_so():
    with pytest.raises(UsageError, match="does not run on the given input"):
        tensor_table(small(), [torch.zeros(1, 5)])


def test_the_exported_file_is_a_workload(tmp_path):
    (tmp_path / "m.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Sequential(torch.nn.Linear(64, 10))\n"
    )
    out = tmp_path / "m.csv"
    done = subprocess.run(
        [sys.executable, "-c", "from kfcore.cli import main; main()", "workload", "export",
         f"{tmp_path / 'm.py'}:build", "--input", "64", "-o", str(out)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "2 tensors, 650 elements" in done.stdout
    assert load_model(str(out)).parameters == 650
    scenario = parse(
        {
            "run": {"steps": 2},
            "cluster": {"hosts": 2, "nic_gbps": 1.0},
            "workload": {"model": str(out), "samples_per_s": 100.0, "local_batch": 8},
            "system": {"kind": "ddp"},
        }
    )
    assert simulate(scenario).rows[-1]["bytes_sent_max"] == 2600


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tensor,elements\na,1\n", "must have the columns"),
        ("tensor,elements,layer_macs\na,x,1\n", "line 2"),
        ("tensor,elements,layer_macs\na,0,1\n", "line 2"),
        ("tensor,elements,layer_macs\na,5,0\n", "layer_macs must not all be 0"),
        ("tensor,elements,layer_macs\n", "no tensor"),
    ],
)
def test_a_bad_table_is_refused(tmp_path, text, complaint):
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        load_model(str(file))
