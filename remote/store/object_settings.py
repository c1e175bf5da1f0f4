"""What an S3 store is told with each object it is given: its storage class, its encryption on the server."""

from __future__ import annotations

from dataclasses import dataclass, replace

from local.errors import InvalidRequest

ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")
OPTIONS = ("sse", "sse_kms_key_id")  # of a store opened by its address alone


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

    def or_of(self, options: dict[str, object]) -> ObjectSettings:
        """With the encryption that `options` ask for where nothing else says one; OPTIONS are taken out of them.

        Raises InvalidRequest for a value that is none.
        """
        sse, kms_key_id = (options.pop(name, None) for name in OPTIONS)
        if sse is None and kms_key_id is None:
            return self
        if sse not in ENCRYPTIONS:
            raise InvalidRequest("opening a store, not an encryption", option="sse", choices=",".join(ENCRYPTIONS))
        if kms_key_id is not None and sse == "AES256":
            raise InvalidRequest("opening a store, a KMS key is for sse=aws:kms", option="sse_kms_key_id")
        if self.encryption is not None:
            return self
        return replace(self, encryption=str(sse), kms_key_id=None if kms_key_id is None else str(kms_key_id))


BUCKETS_OWN = ObjectSettings()
