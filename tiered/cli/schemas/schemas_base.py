"""What all types of `tiered.cli.schemas.schemas` share."""

from __future__ import annotations

import msgspec


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """An object with these fields and no other."""




