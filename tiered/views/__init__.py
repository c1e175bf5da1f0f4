"""Build compacted views; `tiered.read.reader` reads them."""
