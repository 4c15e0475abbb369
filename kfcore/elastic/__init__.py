"""What survives a change of workers: data positions, state, checkpoints, learning rates."""

from kfcore.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
