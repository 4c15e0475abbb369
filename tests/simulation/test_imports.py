"""Workloads from profilers' files: gradients in order, with the time between them."""

import contextlib
import json
import struct

import pytest

from kfcore.errors import UsageError
from kfsim import simulate
from kfsim.imports import read_chakra, read_profile, write_workload
from kfsim.scenario import parse
from kfsim.workload import load_model


def span(name, ts, dur, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def one_step(at):
    """As torch.profiler 2.13 writes it: forward 100 us, then two gradients."""
    engine = "autograd::engine::evaluate_function: "
    ready = "torch::autograd::AccumulateGrad"
    return [
        span("aten::linear", at + 10, 90, **{"Input Dims": [[8, 20], [30, 20], [30]]}),
        span(engine + "AddmmBackward0", at + 110, 300),
        span(engine + ready, at + 415, 10),
        span(ready, at + 418, 2, **{"Input Dims": [[30]]}),
        span(engine + "AddmmBackward0", at + 430, 80),
        span(ready, at + 515, 5, **{"Input Dims": [[30, 20]]}),
        span("Optimizer.step#SGD.step", at + 600, 50, "user_annotation"),
    ]


def trace(tmp_path, events):
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return file


def test_a_profile_gives_each_gradient_its_share_of_backward(tmp_path):
    found = read_profile(trace(tmp_path, list(reversed(one_step(0)))))
    assert found.rows == (("grad0_30", 30, 310.0), ("grad1_30x20", 600, 100.0))
    assert (found.forward_us, found.backward_us) == (100.0, 410.0)
    assert found.forward_fraction == pytest.approx(100 / 510)


def test_of_several_steps_the_last_counts(tmp_path):
    marks = [span(f"ProfilerStep#{n}", n * 1000, 900, "user_annotation") for n in (0, 1)]
    events = [*marks, *one_step(0)[:4], *one_step(1000)]
    assert len(read_profile(trace(tmp_path, events)).rows) == 2


def test_kernels_count_where_they_were_launched(tmp_path):
    launches = [(20, 1, 5000), (150, 2, 700), (440, 3, 40), (460, 4, 60)]
    events = one_step(0)
    for ts, number, length in launches:
        events.append(span("cudaLaunchKernel", ts, 3, "cuda_runtime", correlation=number))
        events.append(span("gemm", 9000 + ts, length, "kernel", correlation=number))
    found = read_profile(trace(tmp_path, events))
    assert [row[2] for row in found.rows] == [700.0, 100.0]
    assert found.forward_us == 5000.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not a trace"),
        ("[]", "not a trace"),
        ('{"traceEvents": []}', "shows no gradient"),
        ('{"traceEvents": [{"ph": "X"}]}', "not a trace"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, text, complaint):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(UsageError, match=complaint):
        read_profile(tmp_path / "t.json")


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def text(field, value):
    raw = value if isinstance(value, bytes) else value.encode()
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def attribute(name, field, value):
    return text(10, text(1, name) + number(field, value))


def node(ident, name, kind, start, duration, *attributes):
    return (
        number(1, ident) + text(2, name) + number(3, kind) + number(6, start)
        + number(7, duration) + b"".join(attributes)
        + text(10, text(1, "ratio") + varint(3 << 3 | 1) + struct.pack("<d", 0.5))
    )  # fmt: skip


def chakra(tmp_path, *messages):
    file = tmp_path / "rank.0.et"
    file.write_bytes(b"".join(varint(len(m)) + m for m in (text(1, "0.0.4"), *messages)))
    return file


def all_reduce(ident, start, size, kind=0):
    return node(
        ident, f"bucket{ident}", 7, start, 0,
        attribute("comm_type", 9, kind), attribute("comm_size", 9, size),
    )  # fmt: skip


def test_a_chakra_trace_gives_its_all_reduces(tmp_path):
    file = chakra(
        tmp_path,
        all_reduce(4, 700, 8000),  # not in order of time
        node(1, "forward", 4, 0, 200),
        node(2, "backward", 4, 200, 300),
        all_reduce(3, 500, 4_000_000),
        all_reduce(9, 600, 77, kind=5),  # a broadcast
        node(5, "backward", 4, 510, 150),
    )
    found = read_chakra(file)
    assert found.rows == (("bucket3", 1_000_000, 500.0), ("bucket4", 2000, 150.0))
    assert read_chakra(file, 2).rows[1][1] == 4000
    with pytest.raises(UsageError, match="holds no all-reduce"):
        read_chakra(chakra(tmp_path, node(1, "forward", 4, 0, 200)))
    with pytest.raises(UsageError, match="no node computes"):
        read_chakra(chakra(tmp_path, all_reduce(1, 0, 8)))
    with pytest.raises(UsageError, match="comm_size must be > 0"):
        read_chakra(chakra(tmp_path, all_reduce(1, 0, 0)))
    whole = file.read_bytes()
    for cut in range(len(whole)):  # a file that was cut anywhere is refused or shorter
        file.write_bytes(whole[:cut])
        with contextlib.suppress(UsageError):
            assert len(read_chakra(file).rows) <= 2


def test_what_was_imported_is_a_workload(tmp_path):
    out = tmp_path / "m.csv"
    write_workload(out, read_profile(trace(tmp_path, one_step(0))), "Imported.")
    model = load_model(str(out))
    assert model.parameters == 630
    assert model.backward_end.tolist() == pytest.approx([310 / 410, 1.0])
    one = parse(
        {
            "cluster": {"hosts": 2, "nic_gbps": 1.0},
            "workload": {"model": str(out), "samples_per_s": 100.0, "local_batch": 8},
            "system": {"kind": "kf"},
        }
    )
    assert simulate(one).rows[-1]["bytes_sent_max"] >= 2520


@pytest.mark.slow
def test_a_profile_that_torch_writes_today_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10)
    )
    with torch.profiler.profile(record_shapes=True) as profile:
        model(torch.randn(8, 20)).sum().backward()
    profile.export_chrome_trace(str(tmp_path / "t.json"))
    found = read_profile(tmp_path / "t.json")
    assert sorted(row[1] for row in found.rows) == [10, 30, 300, 600]
    assert [row[1] for row in found.rows][:2] == [10, 300]
    assert found.forward_us > 0
