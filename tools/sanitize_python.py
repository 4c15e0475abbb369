"""Runs worlds of real Python processes on a module that was built with a sanitizer.

    python tools/sanitize_python.py address,undefined build/sanitize-address,undefined

The module is put over this tree's ``kfcore``, each worker starts with the sanitizer's library
preloaded, and every report of it, every exit code but 0 and every missing line is a failure.
"""

import os
import secrets
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}
TIMEOUT_S = 240
SECRET = secrets.token_hex(8)
WORKER = """
    import sys, time
    import numpy as np
    import kfcore as kf
    from kfcore import errors

    def collectives(s):
        n, r = s.world_size, s.rank
        for shared in (True, False):
            for count in (0, 1, 1000, 300_001):
                a = (kf.empty if shared else np.empty)(count, "float32")
                a[:] = np.arange(count) % 100 + r
                s.all_reduce(a)
                assert (a == n * (np.arange(count) % 100) + n * (n - 1) // 2).all()
        handles = [s.all_reduce(np.ones(50_000 + i), async_op=True) for i in range(8)]
        assert all(h.wait()[0] == n for h in handles)
        s.grouped_all_reduce([np.ones(k, "float16") for k in (3, 700, 9)], "avg")
        assert s.broadcast(np.full(70_000, r, "int64"), root=1)[0] == 1
        s.all_gather(np.full(3, r)); s.all_to_all(np.ones((n, 2))); s.barrier()
        s.save("m", [np.full(1000, float(r))], version=1)
        assert s.request((r + 1) % n, "m").arrays[0][0] == (r + 1) % n
        s.barrier()

    def loss(s):
        a = kf.empty(400_000, "float32")
        a[:] = 1
        s.all_reduce(a)
        print("ready", flush=True)
        if s.rank == 1:
            time.sleep(600)
        try:
            s.all_reduce(a)
        except errors.PeerLostError:
            return
        raise SystemExit("nobody was lost")

    what, transport = sys.argv[1:]
    session = kf.init(transport=transport)
    {"collectives": collectives, "loss": loss}[what](session)
    session.close()
    print("done", flush=True)
"""


def overlay(folder: Path, build: Path) -> None:
    """Make a ``kfcore`` in `folder` that is this tree's, with the module from `build`."""
    package = folder / "kfcore"
    package.mkdir()
    for path in (ROOT / "kfcore").iterdir():
        if not path.name.startswith("_native."):
            (package / path.name).symlink_to(path)
    (module,) = build.glob("_native*.so")
    (package / module.name).symlink_to(module.resolve())


def environment(folder: Path, kind: str) -> dict[str, str]:
    """Variables of a worker; leaks are not looked for, Python leaves much to the end."""
    names = (
        LIBRARIES[kind.split(",", maxsplit=1)[0]],
        "libstdc++.so",
    )  # whose exceptions it sees
    libraries = [
        subprocess.run(
            [os.environ.get("CXX", "g++"), f"-print-file-name={name}"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for name in names
    ]
    options = f"log_path={folder}/report:exitcode=99:halt_on_error=1"
    packages = sysconfig.get_paths()["purelib"]
    paths = [str(folder), packages]
    for file in Path(packages).glob("*.pth"):
        paths += [line for line in file.read_text().splitlines() if line.startswith("/")]
    inherited = {key: value for key, value in os.environ.items() if key[:3] != "KF_"}
    return {
        **inherited,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": f"detect_leaks=0:{options}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{options}",
        "TSAN_OPTIONS": f"report_signal_unsafe=0:{options}",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join(paths),
        "OPENBLAS_NUM_THREADS": "1",
    }


def run(folder: Path, kind: str, what: str, transport: str, world_size: int) -> None:
    """Run one world; SystemExit when anything is wrong."""
    sys.path.insert(0, str(ROOT))
    from kfcore.store import StoreServer  # noqa: PLC0415 - this process's own, not the one tested

    script = folder / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    # -S: no site, so that an installed package does not come before the one tested
    command = [sys.executable, "-S", str(script), what, transport]
    with StoreServer(secret=SECRET) as store:
        job = {
            "KF_WORLD_SIZE": str(world_size),
            "KF_STORE": store.address,
            "KF_JOB_SECRET": SECRET,
            "KF_TIMEOUT_S": "120",
        }
        workers = [
            subprocess.Popen(
                command,
                env={**environment(folder, kind), **job, "KF_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
        ]
        try:
            if what == "loss":
                for worker in workers:
                    worker.stdout.readline()  # type: ignore[union-attr]
                workers[1].send_signal(signal.SIGKILL)
            outputs = [worker.communicate(timeout=TIMEOUT_S)[0] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    reports = sorted(folder.glob("report*"))
    for report in reports:
        print(report.read_text())
    judged = [r for r in range(world_size) if what != "loss" or r != 1]
    codes = [workers[r].returncode for r in judged]
    if reports or any(codes) or not all(outputs[r].endswith("done\n") for r in judged):
        sys.exit(f"{what} over {transport}: exit codes {codes}, {len(reports)} reports")
    print(f"{kind}: {what} over {transport} on {world_size} processes: clean", flush=True)


def main() -> None:
    """Run every world on the module of one build folder."""
    kind, build = sys.argv[1:]
    for what in ("collectives", "loss"):
        for transport in ("auto", "tcp"):
            with tempfile.TemporaryDirectory() as folder:
                overlay(Path(folder), Path(build))
                run(Path(folder), kind, what, transport, 3)


if __name__ == "__main__":
    main()
