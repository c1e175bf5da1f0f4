"""The background work of a manager: plans, their application, uploads, cleanings, checkpoints."""
