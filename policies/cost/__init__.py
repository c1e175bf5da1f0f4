"""The cost of the bucket. Pure functions.

| module | content |
|---|---|
| `prices`, `storage_cost` | the price table and its arithmetic |
| `bill` | the monthly cost of topics |
| `simulation` | the life of a partition under given settings |
| `scenarios` | a comparison of settings |
"""
