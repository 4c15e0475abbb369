"""What survives a change of workers: data positions, state, checkpoints, learning rates."""

from kfcore.elastic.checkpoint import (
    CheckpointFolder,
    CheckpointInfo,
    load_checkpoint,
    save_checkpoint,
)
from kfcore.elastic.image import Image
from kfcore.elastic.parts import Value
from kfcore.elastic.preemption import EXIT_PREEMPTED, Preemption
from kfcore.elastic.sampler import ElasticSampler
from kfcore.elastic.state import ElasticState
from kfcore.elastic.stream import Assembly, Manifest, chunks, share_of

__all__ = [
    "EXIT_PREEMPTED",
    "Assembly",
    "CheckpointFolder",
    "CheckpointInfo",
    "ElasticSampler",
    "ElasticState",
    "Image",
    "Manifest",
    "Preemption",
    "Value",
    "chunks",
    "load_checkpoint",
    "save_checkpoint",
    "share_of",
]
