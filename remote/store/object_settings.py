"""Settings that an S3 store sends with each object: storage class and server-side encryption."""

from __future__ import annotations

from dataclasses import dataclass, replace

from local.errors import InvalidRequest

ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")
OPTIONS = ("sse", "sse_kms_key_id")  # of a store opened by its URL alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """Object settings; None uses the bucket's defaults.

    `encryption` is S3's name, ``AES256`` or ``aws:kms``. `storage_class` applies to uploads, which are segments.
    Indexes and manifests are small, read often and replaced soon, and cheaper classes charge extra for that.
    """

    storage_class: str | None = None
    encryption: str | None = None
    kms_key_id: str | None = None

    def of_small(self) -> dict[str, object]:
        """Return the parameters of S3 requests that create a small object."""
        given = {"ServerSideEncryption": self.encryption, "SSEKMSKeyId": self.kms_key_id}
        return {name: value for name, value in given.items() if value is not None}

    def of_upload(self) -> dict[str, object]:
        """Return the parameters of S3 requests that create a segment."""
        return self.of_small() | ({"StorageClass": self.storage_class} if self.storage_class is not None else {})

    def or_of(self, options: dict[str, object]) -> ObjectSettings:
        """Return these settings, or those of OPTIONS, which leave `options`. Raises InvalidRequest."""
        sse, kms_key_id = (options.pop(name, None) for name in OPTIONS)
        if sse is None and kms_key_id is None:
            return self
        if sse not in ENCRYPTIONS:
            raise InvalidRequest(
                "cannot open the store, unknown encryption", option="sse", choices=",".join(ENCRYPTIONS)
            )
        if kms_key_id is not None and sse == "AES256":
            raise InvalidRequest("cannot open the store, a KMS key needs sse=aws:kms", option="sse_kms_key_id")
        if self.encryption is not None:
            return self
        return replace(self, encryption=str(sse), kms_key_id=None if kms_key_id is None else str(kms_key_id))


BUCKETS_OWN = ObjectSettings()
