"""The object-store protocol and its implementations. Start with `protocol` and `open_store`."""

from remote.store.protocol import DELETE_PAGE as DELETE_PAGE
from remote.store.protocol import LIST_PAGE as LIST_PAGE
from remote.store.protocol import MISSING_TRIES as MISSING_TRIES
from remote.store.protocol import Body as Body
from remote.store.protocol import GetRange as GetRange
from remote.store.protocol import ObjectInfo as ObjectInfo
from remote.store.protocol import ObjectStore as ObjectStore
from remote.store.protocol import UploadSource as UploadSource
from remote.store.protocol import parts_of as parts_of
from remote.store.protocol import ranged_source as ranged_source
from remote.store.protocol import read_if_there as read_if_there
from remote.store.protocol import read_named as read_named
