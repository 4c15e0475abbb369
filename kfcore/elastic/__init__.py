"""What survives a change of workers: data positions, state, checkpoints, learning rates."""

from kfcore.elastic.image import Image
from kfcore.elastic.parts import Value
from kfcore.elastic.sampler import ElasticSampler
from kfcore.elastic.state import ElasticState
from kfcore.elastic.stream import Assembly, Manifest, chunks, share_of

__all__ = [
    "Assembly",
    "ElasticSampler",
    "ElasticState",
    "Image",
    "Manifest",
    "Value",
    "chunks",
    "share_of",
]
