"""Detection and repair of damage: every result is a finding with a next step."""
