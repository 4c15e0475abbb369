"""C++ core of KungFu Lab. Private: use kfcore."""

from collections.abc import Sequence
import enum
from typing import Annotated, Any, Final, overload

import numpy
from numpy.typing import NDArray


class Transfer:
    """One message: src sends dst a run of chunks in a round."""

    def __init__(self, src: int, dst: int, chunk_begin: int, chunk_count: int, combine: str) -> None: ...

    @property
    def src(self) -> int: ...

    @property
    def dst(self) -> int: ...

    @property
    def chunk_begin(self) -> int: ...

    @property
    def chunk_count(self) -> int: ...

    @property
    def combine(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class Schedule:
    """A collective as data: channels of rounds of transfers."""

    @property
    def name(self) -> str: ...

    @property
    def collective(self) -> str: ...

    @property
    def world_size(self) -> int: ...

    @property
    def root(self) -> int: ...

    @property
    def chunk_count(self) -> int: ...

    @property
    def channels(self) -> list[list[list[Transfer]]]: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

def make_schedule(name: str, collective: str, world_size: int, root: int, chunk_count: int, channels: Sequence[Sequence[Sequence[Transfer]]]) -> Schedule: ...

def build_schedule(spec: str, collective: str, world_size: int, root: int) -> Schedule: ...

class Cost:
    """Rounds, bytes sent by each rank, time."""

    @property
    def rounds(self) -> int: ...

    @property
    def bytes_sent(self) -> list[int]: ...

    @property
    def time_s(self) -> float: ...

def validate(schedule: Schedule) -> None: ...

def cost(schedule: Schedule, buffer_bytes: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float, unit_bytes: int) -> Cost: ...

def choose_schedule(collective: str, buffer_bytes: int, world_size: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float) -> str: ...

def minimum_spanning_tree(latency_s: Sequence[float], world_size: int) -> str: ...

def from_bandwidth(bytes_per_s: Sequence[float], world_size: int) -> str: ...

def custom_spec(schedule: Schedule) -> str: ...

def generator_names() -> list[str]: ...

def collectives_of(name: str) -> list[str]: ...

class BackgroundFlows:
    """Greedy connections outside the job."""

    def __init__(self, src_host: int, dst_host: int, count: int) -> None: ...

    @property
    def src_host(self) -> int: ...

    @property
    def dst_host(self) -> int: ...

    @property
    def count(self) -> int: ...

class Fabric:
    """Hosts, ports and links (kf/replay.h)."""

    @property
    def host_of_rank(self) -> list[int]: ...

    @property
    def egress_bytes_per_s(self) -> list[float]: ...

    @property
    def ingress_bytes_per_s(self) -> list[float]: ...

    @property
    def latency_s(self) -> float: ...

    @property
    def message_s(self) -> float: ...

    @property
    def reduce_bytes_per_s(self) -> float: ...

def make_fabric(*, host_of_rank: Sequence[int], egress_bytes_per_s: Sequence[float], ingress_bytes_per_s: Sequence[float], latency_s: float, message_s: float = 0.0, reduce_bytes_per_s: float = float('inf'), local_bytes_per_s: float = float('inf'), local_latency_s: float = 0.0, rack_of_host: Sequence[int] = [], rack_bytes_per_s: float = float('inf'), background: Sequence[BackgroundFlows] = []) -> Fabric: ...

class Replay:
    """One collective prepared for simulated time (kf/replay.h)."""

    def __init__(self, schedule: Schedule, fabric: Fabric, buffer_bytes: int, *, segment_bytes: int = 0, unit_bytes: int = 1, tier: str = 'auto', batch_fraction: float = -1.0) -> None: ...

    def run(self, ready_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

    @property
    def tier(self) -> str: ...

    @property
    def tier_reason(self) -> str: ...

    @property
    def tier_error(self) -> float: ...

    @property
    def bytes_sent(self) -> list[int]: ...

    @property
    def bytes_received(self) -> list[int]: ...

    @property
    def messages(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def lower_bound_s(self) -> float: ...

class SharedMemory:
    """Buffers that peers of this host read in place."""

    def __init__(self) -> None: ...

    def contains(self, address: int, bytes: int) -> bool: ...

    @property
    def bytes_in_use(self) -> int: ...

def allocate_shared(pool: SharedMemory, bytes: int) -> object: ...

class DType(enum.Enum):
    float32 = 0

    float64 = 1

    float16 = 2

    bfloat16 = 3

    int8 = 4

    uint8 = 5

    int16 = 6

    int32 = 7

    int64 = 8

    bool = 9

    complex64 = 10

    complex128 = 11

class ReduceOp(enum.Enum):
    sum = 0

    prod = 1

    min = 2

    max = 3

    avg = 4

class Piece:
    """Elements at an address; the caller keeps the memory alive."""

    def __init__(self, address: int, count: int, dtype: DType, op: ReduceOp) -> None: ...

    @property
    def address(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def op(self) -> ReduceOp: ...

class View:
    def __init__(self, version: int, members: Sequence[str]) -> None: ...

    @property
    def version(self) -> int: ...

    @property
    def members(self) -> list[str]: ...

class PeerStats:
    @property
    def messages_sent(self) -> int: ...

    @property
    def bytes_sent(self) -> int: ...

    @property
    def messages_received(self) -> int: ...

    @property
    def bytes_received(self) -> int: ...

class SessionStats:
    @property
    def operations(self) -> int: ...

    @property
    def control_messages(self) -> int: ...

    @property
    def peers(self) -> list[PeerStats]: ...

class InprocHub:
    def __init__(self, world_size: int) -> None: ...

class Session:
    def run(self, collective: str, pieces: Sequence[Piece], root: int, name: str, timeout_s: float) -> None: ...

    def set_schedule(self, spec: str) -> None: ...

    def close(self) -> None: ...

    def stats(self) -> SessionStats: ...

    @property
    def rank(self) -> int: ...

    @property
    def transport(self) -> str: ...

    @property
    def schedule(self) -> str: ...

def open_inproc_session(hub: InprocHub, view: View, rank: int, schedule: str, segment_bytes: int) -> Session: ...

class TcpListener:
    def __init__(self, host: str, port: int) -> None: ...

    @property
    def address(self) -> str: ...

    @property
    def port(self) -> int: ...

    def close(self) -> None: ...

def open_host_session(listener: TcpListener, view: View, rank: int, job_id: str, job_secret: str, addresses: Sequence[str], schedule: str, segment_bytes: int, timeout_s: float, share_memory: bool, registered: SharedMemory) -> tuple[Session, str]: ...

class Model:
    """Arrays that a rank has saved."""

    @property
    def version(self) -> int: ...

    @property
    def description(self) -> bytes: ...

    align: Final[int] = ...
    """(arg: object, /) -> int"""

def model_bytes(model: Model) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...

def save_model(session: Session, name: str, version: int, description: str, pieces: Sequence[Piece], keep: int) -> None: ...

def request_model(session: Session, peer: int, name: str, version: int, timeout_s: float) -> Model | None: ...

class Group:
    """Some ranks of a view."""

    @property
    def members(self) -> list[int]: ...

    @property
    def rank(self) -> int: ...

class Call:
    """What is asked of a session."""

    def __init__(self) -> None: ...

class Started:
    """An operation under way."""

    def times(self) -> tuple[float, float]: ...

def call(collective: str, pieces: Sequence[Piece], root: int, name: str, blocks: Sequence[int], site: str) -> Call: ...

def exchange_call(input: int, output: int, dtype: DType, counts: Sequence[int], rank: int, world_size: int, name: str, site: str) -> Call: ...

def make_group(session: Session, members: Sequence[int]) -> Group: ...

def start(session: Session, call: Call, group: Group | None, background: bool, timeout_s: float) -> Started: ...

def start_send(session: Session, peer: int, tag: int, call: Call, group: Group | None, background: bool, timeout_s: float) -> Started: ...

def start_receive(session: Session, peer: int, tag: int, call: Call, group: Group | None, background: bool, timeout_s: float) -> Started: ...

def wait(session: Session, started: Started, timeout_s: float) -> None: ...

def done(session: Session, started: Started) -> bool: ...

class Caller:
    def __init__(self, session: Session, ndarray: object) -> None: ...

    def all_reduce(self, array: object, op: str, timeout_s: float) -> bool: ...

    def all_reduce_list(self, arrays: list[Any], op: str, most_bytes: int, timeout_s: float) -> bool: ...

class SettingKind(enum.Enum):
    hyper = 0

    schedule = 1

    world_size = 2

    stop = 3

class Verdict(enum.Enum):
    unchanged = 0

    installed = 1

    conflict = 2

class Setting:
    def __init__(self, name: str, kind: SettingKind, value: float | str, minimum: float = 0.0, maximum: float = 0.0, integral: bool = False) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> SettingKind: ...

    @property
    def value(self) -> float | str: ...

    @property
    def minimum(self) -> float: ...

    @property
    def maximum(self) -> float: ...

    @property
    def integral(self) -> bool: ...

class Change:
    def __init__(self, name: str, value: float | str, reason: str = '', policy: str = '') -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> float | str: ...

    @property
    def reason(self) -> str: ...

    @property
    def policy(self) -> str: ...

class Installed:
    @property
    def step(self) -> int: ...

    @property
    def view_version(self) -> int: ...

    @property
    def config_version(self) -> int: ...

    @property
    def kind(self) -> SettingKind: ...

    @property
    def name(self) -> str: ...

    @property
    def old_value(self) -> float | str: ...

    @property
    def new_value(self) -> float | str: ...

    @property
    def reason(self) -> str: ...

    @property
    def policy(self) -> str: ...

class Decision:
    @property
    def verdict(self) -> Verdict: ...

    @property
    def installed(self) -> list[Installed]: ...

class Engine:
    def __init__(self, settings: Sequence[Setting], view_version: int) -> None: ...

    def propose(self, changes: Sequence[Change]) -> None: ...

    def withdraw(self) -> None: ...

    def digest_words(self) -> list[float]: ...

    def decide(self, max_digest: float, max_negated: float) -> Decision: ...

    def proposal_text(self) -> str: ...

    def raise_conflict(self, text_by_rank: Sequence[str]) -> None: ...

    def value(self, name: str) -> float | str: ...

    def settings(self) -> list[Setting]: ...

    @property
    def has_proposal(self) -> bool: ...

    @property
    def step(self) -> int: ...

    @property
    def view_version(self) -> int: ...

    @property
    def config_version(self) -> int: ...

    TEXT_BYTES: Final[int] = ...
    """(arg: object, /) -> int"""

LOCAL_FIELDS: int = 7

CONTROL_SUMS: int = 14

CONTROL_MAXES: int = 4

class ClusterStep:
    @property
    def step_s(self) -> float: ...

    @property
    def compute_s(self) -> float: ...

    @property
    def mean_step_s(self) -> float: ...

    @property
    def mean_compute_s(self) -> float: ...

    @property
    def mean_comm_s(self) -> float: ...

    @property
    def mean_comm_bytes(self) -> float: ...

    @property
    def loss(self) -> float: ...

    @property
    def mean_grad_sq_norm(self) -> float: ...

    @property
    def samples(self) -> float: ...

    @property
    def nonfinite_ranks(self) -> float: ...

def encode_rows(fields: Annotated[NDArray[numpy.float64], dict(shape=(None, 7), order='C', device='cpu', writable=False)], digest_words: Sequence[float], sums: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')], maxes: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

def decode_cluster(sums: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], maxes: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], world_size: int) -> ClusterStep: ...

class Undefined(enum.Enum):
    no = 0

    no_data = 1

    single_gradient = 2

    non_positive = 3

class NoiseScale:
    def __init__(self, decay: float) -> None: ...

    def update(self, mean_local_sq: float, global_sq: float, samples: float, world_size: int) -> bool: ...

    def reset(self) -> None: ...

    def why_undefined(self) -> Undefined: ...

    def value(self) -> float | None: ...

    def sqr(self) -> float | None: ...

    def var(self) -> float | None: ...

@overload
def squared_norm(values: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]) -> float: ...

@overload
def squared_norm(values: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)]) -> float: ...
