"""Host lists and host files in the forms people have them."""

import pytest

from kfcore.errors import UsageError
from kfcore.launch.hosts import Host, Place, parse_hosts, place, read_hostfile
from kfcore.nodelist import expand_counts, expand_nodelist

HOSTFILE = (
    b"# my machines\r\n"
    b"h1\tslots=2   # the first\r\n"
    b"\r\n"
    b"h2 slots=4 max_slots=8\r\n"
    b"10.0.0.3 slots=1 public_addr=1.2.3.4\r\n"
    b"h1 slots=3\r\n"
)


def test_host_file_with_comments_tabs_and_repeated_hosts(tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes(HOSTFILE + b"h4:2\r\n[fd00::5]:2\r\nh6\r\n")
    assert read_hostfile(path) == [
        Host("h1", 5),
        Host("h2", 4),
        Host("10.0.0.3", 1),
        Host("h4", 2),
        Host("fd00::5", 2),
        Host("h6", 1),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"h1 lots=8", "h1 lots=8: unknown key lots"),
        (b"h1 8", "h1 8: '8' is not KEY=VALUE"),
        (b"h1 slots=0", r"h1 slots=0: slots must be in \[1, 8192\], got '0'"),
        (b"h1 slots=", "got ''"),
        (b"-oProxyCommand=x slots=1", "'-oProxyCommand=x' is no host name"),
        (b"fd00::5 slots=1", "needs brackets"),
    ],
)
def test_bad_line_is_named_with_file_number_and_text(tmp_path, line, reason):
    path = tmp_path / "hosts"
    path.write_bytes(HOSTFILE + line + b"\n")
    with pytest.raises(UsageError, match=rf"hosts:7: .*{reason}"):
        read_hostfile(path)


def test_empty_and_unreadable_host_files_are_refused(tmp_path):
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(UsageError, match="no host in it"):
        read_hostfile(tmp_path / "empty")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_hostfile(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_hostfile(tmp_path / "binary")


def test_host_lists_of_the_command_line():
    assert parse_hosts("a:2, b ,[::1]:3,10.0.0.1:4:1.2.3.4") == [
        Host("a", 2),
        Host("b", 1),
        Host("::1", 3),
        Host("10.0.0.1", 4),
    ]
    for text, reason in (("", "no host"), ("a:x", "slots must be"), ("::1", "needs brackets")):
        with pytest.raises(UsageError, match=reason):
            parse_hosts(text)


def test_ranks_fill_one_host_after_another():
    hosts = [Host("a", 2), Host("b", 3)]
    assert [p.host for p in place(hosts, None)] == ["a", "a", "b", "b", "b"]
    assert place(hosts, 3) == [Place(0, "a", 0, 2), Place(1, "a", 1, 2), Place(2, "b", 0, 1)]
    with pytest.raises(UsageError, match=r"6 workers do not fit 5 slots \(a:2, b:3\)"):
        place(hosts, 6)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("linux[1,2]", "linux1 linux2"),
        ("alpha,beta,gamma", "alpha beta gamma"),
        ("alpha beta", "alpha beta"),
        ("jean-zay-ia810", "jean-zay-ia810"),
        ("host[001,003-004,006]", "host001 host003 host004 host006"),
        ("nodeA,nodeB[001,003],nodeC", "nodeA nodeB001 nodeB003 nodeC"),
        ("a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4"),
        ("tux[9-11]", "tux9 tux10 tux11"),
        ("r[0-1]_b[0-1].x", "r0_b0.x r0_b1.x r1_b0.x r1_b1.x"),
        ("bgl[12x23]", "bgl12 bgl13 bgl22 bgl23"),
        ("", ""),
    ],
)
def test_node_lists_of_slurm(text, names):
    assert expand_nodelist(text) == names.split()


@pytest.mark.parametrize(
    "text",
    ["n[3-1]", "n[1", "n1]", "n[a-b]", "n[]", "n[1-]", "n[[1]]", "n[21x12]", "n[0-99999999]"],
)
def test_malformed_node_lists_are_errors(text):
    with pytest.raises(UsageError, match="node list"):
        expand_nodelist(text)


def test_tasks_per_node_of_slurm():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("4") == [4]
    for text in ("", "2(x", "x", "2(3)", "1(x999999999)"):
        with pytest.raises(UsageError, match="tasks per node"):
            expand_counts(text)
