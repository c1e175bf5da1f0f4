"""What an S3 store is told with each object it is given: its storage class, its encryption on the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """None leaves it to the bucket. `encryption` is S3's name for it, ``AES256`` or ``aws:kms``.

    `storage_class` is for what is uploaded, segments; indexes and heads are small, read often and replaced soon, which
    the cheaper classes charge for.
    """

    storage_class: str | None = None
    encryption: str | None = None
    kms_key_id: str | None = None

    def of_small(self) -> dict[str, object]:
        """Parameters of S3's requests that create a small object."""
        given = {"ServerSideEncryption": self.encryption, "SSEKMSKeyId": self.kms_key_id}
        return {name: value for name, value in given.items() if value is not None}

    def of_upload(self) -> dict[str, object]:
        """And of those that create a segment."""
        return self.of_small() | ({"StorageClass": self.storage_class} if self.storage_class is not None else {})


BUCKETS_OWN = ObjectSettings()
