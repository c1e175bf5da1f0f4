"""One stream of records over both tiers, from buckets, external layouts and compacted views too."""
