"""Plans: decisions with prices, shown, saved and applied later."""
