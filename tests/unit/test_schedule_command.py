"""``kf schedule``: what it prints, and its exit codes."""

import json

import pytest

from kfcore import schedule as ks
from kfcore.cli import main


@pytest.fixture
def kf(capsys):
    def call(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["schedule", *args])
        out = capsys.readouterr()
        return int(stop.value.code or 0), out.out, out.err

    return call


def test_list_names_every_generator(kf):
    code, out, _ = kf("list", "--json")
    assert code == 0
    assert tuple(json.loads(out)) == ks.names()
    code, out, _ = kf("list")
    assert all(name in out for name in ks.names())


def test_show_prints_each_round(kf):
    code, out, _ = kf("show", "star(root=1)", "-n", "3")
    assert code == 0
    assert "star(root=1): all_reduce over 3 ranks, 1 chunks, 1 channels, 2 rounds" in out
    assert "0=>1:0 2=>1:0" in out
    assert "1->0:0 1->2:0" in out


def test_show_counts_what_it_leaves_out(kf):
    _, out, _ = kf("show", "ring", "-n", "5", "--max-rounds", "3")
    assert "5 more rounds" in out


def test_show_json_is_read_back_by_validate(kf, tmp_path):
    path = tmp_path / "mine.json"
    _, out, _ = kf("show", "halving_doubling", "-n", "6", "--json")
    path.write_text(out)
    assert ks.from_json(out) == ks.build("halving_doubling", 6)
    code, out, _ = kf("validate", str(path))
    assert code == 0
    assert out.startswith("valid: halving_doubling: all_reduce over 6 ranks")


def test_validate_exits_with_1_and_the_fault_when_a_schedule_is_wrong(kf, tmp_path):
    data = json.loads(ks.to_json(ks.build("ring", 3)))
    del data["channels"][0][-1][0]
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(data))
    code, out, err = kf("validate", str(path))
    assert (code, out) == (1, "")
    assert "lacks the contribution of rank" in err
    code, out, _ = kf("validate", str(path), "--json")
    assert code == 1
    assert json.loads(out)["valid"] is False


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("show", "rign"), 'no schedule is called "rign"'),
        (("validate", "absent.json"), "cannot read absent.json"),
        (("cost", "ring", "--bytes-per-s", "0"), "bytes_per_s must be > 0"),
        (("cost", "-c", "allreduce"), "collective must be one of"),
    ],
)
def test_wrong_use_exits_with_2_and_a_message(kf, args, message):
    code, out, err = kf(*args)
    assert (code, out) == (2, "")
    assert message in err


def test_cost_compares_all_schedules_fastest_first(kf):
    code, out, _ = kf("cost", "-n", "8", "--bytes", "8000000")
    assert code == 0
    places = [out.index(f"\n{name} ") for name in ("halving_doubling", "ring", "star")]
    assert places == sorted(places)
    _, out, _ = kf("cost", "ring", "-n", "4", "--bytes", "4000", "--json")
    row = json.loads(out)[0]
    assert row["bytes_sent"] == [6000] * 4
    assert row["time_s"] == pytest.approx(6 * (50e-6 + 1000 / 1.25e9))


def test_a_file_brings_its_world_and_another_is_refused(kf, tmp_path):
    path = tmp_path / "mine.json"
    _, out, _ = kf("show", "ring", "-n", "6", "--json")
    path.write_text(out)
    assert kf("cost", str(path))[0] == 0
    assert kf("cost", str(path), "-n", "6", "-c", "all_reduce")[0] == 0
    for arguments, what in (
        (("-n", "8"), "world_size 6, got 8"),
        (("-c", "reduce"), "collective all_reduce, got reduce"),
        (("--root", "1"), "root 0, got 1"),
    ):
        code, out, err = kf("cost", str(path), *arguments)
        assert (code, out) == (2, "")
        assert f"mine.json is a schedule for {what}" in err
