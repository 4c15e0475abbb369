"""The store: a small versioned key-value service where the workers of a job meet."""

from kfcore.store.client import StoreClient
from kfcore.store.connect import connect_store, open_store
from kfcore.store.server import StoreServer
from kfcore.store.wire import Entry, Swap

__all__ = ["Entry", "StoreClient", "StoreServer", "Swap", "connect_store", "open_store"]
