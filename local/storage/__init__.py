"""All access to the local disk passes through a `Storage`. Start with `storage.Storage`."""

from local.storage.storage import Body as Body
from local.storage.storage import DiskFile as DiskFile
from local.storage.storage import DiskStorage as DiskStorage
from local.storage.storage import FileFacts as FileFacts
from local.storage.storage import SegmentFiles as SegmentFiles
from local.storage.storage import Space as Space
from local.storage.storage import Storage as Storage
from local.storage.storage import StorageFile as StorageFile
from local.storage.storage import join as join
from local.storage.storage import parent as parent
from local.storage.storage import replace_file as replace_file
from local.storage.storage import sync_file as sync_file
from local.storage.storage import write_file as write_file
